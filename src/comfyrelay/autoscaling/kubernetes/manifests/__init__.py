"""What a cluster is given to run a fleet: server, scaler and workers, each as the objects of Kubernetes."""
