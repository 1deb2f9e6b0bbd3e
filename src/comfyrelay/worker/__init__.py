"""The agent on a GPU host: it registers, polls for jobs, runs them on ComfyUI, uploads their outputs and
deregisters."""
