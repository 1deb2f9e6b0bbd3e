"""The files of jobs: inputs, ComfyUI's folders and outputs."""
