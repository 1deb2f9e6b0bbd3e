"""A fleet in a cluster: KEDA is told how many machines there should be, and Kubernetes makes and ends them."""
