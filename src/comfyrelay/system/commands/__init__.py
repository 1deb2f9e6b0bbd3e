"""Run commands: contained commands leave no process behind, detached commands outlive this process."""
