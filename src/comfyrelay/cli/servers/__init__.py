"""Commands for servers, workers and the simulator."""
