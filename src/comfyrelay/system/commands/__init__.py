"""Run commands: contained ones, which leave no process behind, and detached ones, which outlive this process."""
