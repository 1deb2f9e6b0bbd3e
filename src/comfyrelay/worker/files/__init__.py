"""The files of jobs: on their way here, in ComfyUI's folders, and on their way to storage."""
