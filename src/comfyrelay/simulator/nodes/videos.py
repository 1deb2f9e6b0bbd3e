"""Nodes that read and write videos, with PyAV."""

from collections.abc import Mapping
from fractions import Fraction

from comfyrelay.simulator.nodes.media import Audio, Components, Images, SimulatedVideo, write_mp4, write_webm
from comfyrelay.simulator.nodes.results import NodeFunction, Result, Run
from comfyrelay.simulator.nodes.savers import metadata


def load_video(run: Run, *, file: str) -> Result:
    return Result(outputs=(SimulatedVideo(source=run.folders.resolve(file)),))


def get_video_components(_run: Run, *, video: SimulatedVideo) -> Result:
    parts = video.components()
    return Result(outputs=(parts.images, parts.audio, float(parts.fps)))


def create_video(_run: Run, *, images: Images, fps: float, audio: Audio | None = None) -> Result:
    return Result(outputs=(SimulatedVideo(source=Components(images=images, audio=audio, fps=_rate(fps))),))


def save_video(run: Run, *, video: SimulatedVideo, filename_prefix: str, **_formats: str) -> Result:
    parts = video.components()
    path, entry = run.folders.save_place(filename_prefix, size=parts.images[0].size).file("mp4")
    write_mp4(path, parts, metadata=metadata(run))
    return Result(shown={"images": [entry], "animated": [True]})


def save_webm(run: Run, *, images: Images, filename_prefix: str, codec: str, fps: float, crf: float) -> Result:
    path, entry = run.folders.save_place(filename_prefix, size=images[0].size).file("webm")
    parts = Components(images=images, audio=None, fps=_rate(fps))
    write_webm(path, parts, codec=codec, crf=crf, metadata=metadata(run))
    return Result(shown={"images": [entry], "animated": [True]})


def _rate(fps: float) -> Fraction:
    return Fraction(round(fps * 1000), 1000)


VIDEO_NODES: Mapping[str, NodeFunction] = {
    "LoadVideo": load_video,
    "GetVideoComponents": get_video_components,
    "CreateVideo": create_video,
    "SaveVideo": save_video,
    "SaveWEBM": save_webm,
}
