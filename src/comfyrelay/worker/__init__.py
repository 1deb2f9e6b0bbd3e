"""The agent on a GPU host: it registers, polls for jobs, runs them on ComfyUI, uploads what they made, and leaves."""
