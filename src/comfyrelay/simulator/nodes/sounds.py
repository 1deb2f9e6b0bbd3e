"""Nodes that create and save sounds, with PyAV."""

from collections.abc import Mapping
from pathlib import Path

import av
from av.audio.frame import AudioFrame
from av.audio.resampler import AudioResampler

from comfyrelay.simulator.nodes.media import Audio
from comfyrelay.simulator.nodes.results import NodeContext, NodeFunction, NodeResult
from comfyrelay.simulator.nodes.savers import NO_SIZE, metadata

_LAYOUTS = {1: "mono", 2: "stereo"}


def empty_audio(_context: NodeContext, *, duration: float, sample_rate: int, channels: int) -> NodeResult:
    frame = AudioFrame(format="s16", layout=_LAYOUTS[channels], samples=max(1, round(duration * sample_rate)))
    frame.sample_rate = sample_rate
    frame.planes[0].update(bytes(frame.planes[0].buffer_size))
    return NodeResult(outputs=(Audio(frames=(frame,), sample_rate=sample_rate, layout=_LAYOUTS[channels]),))


def save_audio(context: NodeContext, *, audio: Audio, filename_prefix: str) -> NodeResult:
    path, entry = context.folders.save_target(filename_prefix, size=NO_SIZE).plain_file("flac")
    _write_flac(path, audio, metadata=metadata(context))
    return NodeResult(outputs=(audio,), ui={"audio": [entry]})


def _write_flac(path: Path, audio: Audio, *, metadata: Mapping[str, str]) -> None:
    with av.open(str(path), mode="w", format="flac") as container:
        container.metadata.update(metadata)
        stream = container.add_stream("flac", rate=audio.sample_rate)
        stream.layout = audio.layout
        resampler = AudioResampler(format="s16", layout=audio.layout, rate=audio.sample_rate)
        for frame in audio.frames:
            frame.pts = None
            for piece in resampler.resample(frame):
                container.mux(stream.encode(piece))
        container.mux(stream.encode(None))


SOUND_NODES: Mapping[str, NodeFunction] = {"EmptyAudio": empty_audio, "SaveAudio": save_audio}
