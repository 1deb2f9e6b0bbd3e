"""Nodes that read and write videos, with PyAV."""

from collections.abc import Mapping
from fractions import Fraction

from comfyrelay.simulator.nodes.media import Audio, Images, SimulatedVideo, VideoComponents, write_mp4, write_webm
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult
from comfyrelay.simulator.nodes.savers import metadata


def load_video(context: NodeContext, *, file: str) -> NodeResult:
    return NodeResult(outputs=(SimulatedVideo(source=context.folders.resolve(file)),))


def get_video_components(_context: NodeContext, *, video: SimulatedVideo) -> NodeResult:
    parts = video.components()
    return NodeResult(outputs=(parts.images, parts.audio, float(parts.fps)))


def create_video(_context: NodeContext, *, images: Images, fps: float, audio: Audio | None = None) -> NodeResult:
    return NodeResult(outputs=(SimulatedVideo(source=VideoComponents(images=images, audio=audio, fps=_rate(fps))),))


def save_video(context: NodeContext, *, video: SimulatedVideo, filename_prefix: str, **_formats: str) -> NodeResult:
    parts = video.components()
    path, entry = context.folders.save_target(filename_prefix, size=parts.images[0].size).file("mp4")
    write_mp4(path, parts, metadata=metadata(context))
    return NodeResult(ui={"images": [entry], "animated": [True]})


def save_webm(
    context: NodeContext, *, images: Images, filename_prefix: str, codec: str, fps: float, crf: float
) -> NodeResult:
    path, entry = context.folders.save_target(filename_prefix, size=images[0].size).file("webm")
    parts = VideoComponents(images=images, audio=None, fps=_rate(fps))
    write_webm(path, parts, codec=codec, crf=crf, metadata=metadata(context))
    return NodeResult(ui={"images": [entry], "animated": [True]})


def _rate(fps: float) -> Fraction:
    return Fraction(round(fps * 1000), 1000)


VIDEO_NODES: Mapping[str, NodeFunction] = {
    "LoadVideo": load_video,
    "GetVideoComponents": get_video_components,
    "CreateVideo": create_video,
    "SaveVideo": save_video,
    "SaveWEBM": save_webm,
}
