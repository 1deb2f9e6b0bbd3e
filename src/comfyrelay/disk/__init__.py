"""What a process keeps on the disk of this machine: whole or not there, for one process and for its user alone."""
