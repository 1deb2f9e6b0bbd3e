"""ComfyUI's own API, for ComfyUI's editor, comfy-cli and other clients of ComfyUI. It listens on a separate port: its
paths collide with those of ComfyRelay's API, and the editor must not share the origin of ComfyRelay's pages."""
