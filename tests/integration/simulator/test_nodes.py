"""Every node really runs: the tests open and inspect its files."""

import io
import json
import math
import os
import struct
import sys
import wave
from fractions import Fraction
from pathlib import Path
from typing import Any
from uuid import uuid4

import av
import pytest
from PIL import Image

from comfyrelay.comfyui.runs.socket import parse_frame
from comfyrelay.simulator import Simulator
from comfyrelay.simulator.nodes.media import VideoComponents, write_webm
from tests.integration.simulator.raw_client import Client, error_of, invert_graph, listening
from tests.support.full import full_only
from tests.support.paths import RECORDINGS

Graph = dict[str, Any]


def empty(width: int = 8, height: int = 6, *, count: int = 1, color: int = 0x102030) -> dict[str, Any]:
    inputs = {"width": width, "height": height, "batch_size": count, "color": color}
    return {"class_type": "EmptyImage", "inputs": inputs}


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def save(source: str) -> dict[str, Any]:
    return node("SaveImage", images=[source, 0], filename_prefix="t/out")


async def images_of(client: Client, graph: Graph, saver: str = "9") -> list[Image.Image]:
    entry = await client.run(graph)
    assert entry["status"]["completed"], entry["status"]
    items = entry["outputs"][saver]["images"]
    return [Image.open(io.BytesIO(await client.download(item))) for item in items]


async def test_invert_changes_the_pixels(client: Client) -> None:
    [inverted] = await images_of(client, invert_graph(), "3")
    before = Image.open(RECORDINGS / "rec.png").convert("RGB")
    assert inverted.size == before.size
    assert inverted.getpixel((0, 0)) == tuple(255 - value for value in before.getpixel((0, 0)))  # type: ignore[union-attr]


async def test_empty_image_has_its_colour_and_size(client: Client) -> None:
    images = await images_of(client, {"1": empty(count=3), "9": save("1")})
    assert [image.size for image in images] == [(8, 6)] * 3
    assert images[0].getpixel((0, 0)) == (0x10, 0x20, 0x30)


@pytest.mark.parametrize("method", ["area", *full_only("nearest-exact", "bilinear", "bicubic", "lanczos")])
async def test_scale_has_the_requested_size(method: str, client: Client) -> None:
    scaled = node("ImageScale", image=["1", 0], upscale_method=method, width=16, height=0, crop="disabled")
    [image] = await images_of(client, {"1": empty(), "2": scaled, "9": save("2")})
    assert image.size == (16, 12)


async def test_scale_with_a_crop_keeps_the_middle(client: Client) -> None:
    picture = Image.new("RGB", (30, 10), "red")
    picture.paste(Image.new("RGB", (10, 10), "blue"), (10, 0))
    picture.save(client.simulator.folder / "input" / "bands.png")
    scaled = node("ImageScale", image=["1", 0], upscale_method="area", width=5, height=5, crop="center")
    [image] = await images_of(client, {"1": node("LoadImage", image="bands.png"), "2": scaled, "9": save("2")})
    assert image.size == (5, 5)
    assert {image.getpixel((x, 2)) for x in range(5)} == {(0, 0, 255)}


async def test_scale_by_and_crop(client: Client) -> None:
    graph = {
        "1": empty(),
        "2": node("ImageScaleBy", image=["1", 0], upscale_method="area", scale_by=2.0),
        "3": node("ImageCrop", image=["2", 0], width=100, height=5, x=4, y=1),
        "9": save("3"),
    }
    [image] = await images_of(client, graph)
    assert image.size == (12, 5)


async def test_batches_are_repeated_and_cut(client: Client) -> None:
    graph = {
        "1": empty(count=2),
        "2": node("RepeatImageBatch", image=["1", 0], amount=3),
        "3": node("ImageFromBatch", image=["2", 0], batch_index=4, length=10),
        "9": save("3"),
    }
    assert len(await images_of(client, graph)) == 2


async def test_noise_follows_its_seed(client: Client) -> None:
    def graph(seed: int) -> Graph:
        noise = node("ImageAddNoise", image=["1", 0], seed=seed, strength=0.5)
        return {"1": empty(color=0x808080), "2": noise, "9": save("2")}

    first, again, other = [(await images_of(client, graph(seed)))[0].tobytes() for seed in (1, 1, 2)]
    assert first == again != other
    assert len(set(first)) > 20


async def test_mask_is_the_inverse_of_alpha(client: Client) -> None:
    Image.new("RGBA", (4, 4), (10, 20, 30, 0)).save(client.simulator.folder / "input" / "clear.png")
    entry = await client.run({"1": node("LoadImage", image="clear.png"), "2": node("PreviewAny", source=["1", 1])})
    assert len(entry["outputs"]["2"]["text"]) == 1


async def test_text_and_numbers_are_shown(client: Client) -> None:
    graph = {
        "1": node("LoadVideo", file="rec.mp4"),
        "2": node("GetVideoComponents", video=["1", 0]),
        "3": node("PreviewAny", source=["2", 2]),
        "4": node("PreviewAny", source="hello"),
    }
    entry = await client.run(graph)
    assert entry["outputs"] == {"3": {"text": ["8.0"]}, "4": {"text": ["hello"]}}


@pytest.mark.parametrize("described", [True, False])
async def test_socket_images_are_sent_one_by_one_and_never_cached(client: Client, described: bool) -> None:
    """A real ComfyUI 0.7.0 does the same."""
    graph = {"1": empty(count=2), "2": node("SaveImageWebsocket", images=["1", 0])}
    flags = {"supports_preview_metadata": True} if described else {}
    async with listening(client.simulator, flags=flags) as listener:
        await listener.wait(lambda message: message["type"] == ("feature_flags" if described else "status"))
        for _ in range(2):
            prompt_id = await client.queue_prompt(graph, client_id=listener.client_id)
            await listener.wait_for_end(prompt_id)
            entry = await client.ended(prompt_id)
            assert entry["outputs"] == {}
    kind, second = struct.unpack_from(">II", listener.frames[0])
    assert (len(listener.frames), kind) == (4, 4 if described else 1)
    image = listener.frames[0][8 + second :] if described else listener.frames[0][8:]
    assert Image.open(io.BytesIO(image)).format == "PNG"
    if described:
        about = json.loads(listener.frames[0][8 : 8 + second])
        assert (about["node_id"], about["image_type"]) == ("2", "image/png")
    else:
        assert second == 2


async def test_missing_lora_is_refused(client: Client) -> None:
    graph = {
        "1": node("CheckpointLoaderSimple", ckpt_name="simulator.safetensors"),
        "2": node(
            "LoraLoader",
            model=["1", 0],
            clip=["1", 1],
            lora_name="other.safetensors",
            strength_model=1.0,
            strength_clip=1.0,
        ),
        "3": node("CLIPTextEncode", clip=["2", 1], text="a"),
        "9": node("PreviewAny", source=["3", 0]),
    }
    refused = await client.http.post("/prompt", json={"prompt": graph})
    assert refused.status_code == 400
    assert refused.json()["node_errors"]["2"]["errors"][0]["type"] == "value_not_in_list"
    graph["2"]["inputs"]["lora_name"] = "simulator.safetensors"
    assert (await client.run(graph))["status"]["status_str"] == "success"


async def test_preview_is_a_temp_file(client: Client) -> None:
    entry = await client.run({"1": empty(), "9": node("PreviewImage", images=["1", 0])})
    [item] = entry["outputs"]["9"]["images"]
    assert item["type"] == "temp"
    assert Image.open(io.BytesIO(await client.download(item))).size == (8, 6)


async def test_animated_pictures_load_as_a_batch(client: Client) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]
    frames[0].save(client.simulator.folder / "input" / "moving.gif", save_all=True, append_images=frames[1:])
    images = await images_of(client, {"1": node("LoadImage", image="moving.gif"), "9": save("1")})
    assert len(images) == 3


async def test_saved_files_have_counters_and_subfolders(client: Client) -> None:
    for expected in ("n_00001_.png", "n_00002_.png"):
        graph = {"1": empty(color=int(expected[6])), "9": node("SaveImage", images=["1", 0], filename_prefix="a/b/n")}
        [item] = (await client.run(graph))["outputs"]["9"]["images"]
        assert item == {"filename": expected, "subfolder": "a/b", "type": "output"}
    [item] = (await client.run({"1": empty(), "9": node("SaveImage", images=["1", 0], filename_prefix="%width%x")}))[
        "outputs"
    ]["9"]["images"]
    assert item["filename"] == "8x_00001_.png"


async def test_png_carries_the_prompt_and_the_workflow(client: Client) -> None:
    graph = invert_graph()
    entry = await client.run(graph, extra_data={"extra_pnginfo": {"workflow": {"id": "w1"}}})
    [item] = entry["outputs"]["3"]["images"]
    image = Image.open(io.BytesIO(await client.download(item)))
    assert json.loads(image.info["prompt"]) == graph
    assert json.loads(image.info["workflow"]) == {"id": "w1"}


@pytest.mark.parametrize(
    ("saver", "inputs"),
    [
        ("SaveAnimatedWEBP", {"fps": 10.0, "lossless": True, "quality": 80, "method": "fastest"}),
        ("SaveAnimatedPNG", {"fps": 10.0, "compress_level": 4}),
    ],
)
async def test_animations_have_their_frames(saver: str, inputs: dict[str, Any], client: Client) -> None:
    noise = node("ImageAddNoise", image=["1", 0], seed=1, strength=1.0)
    graph = {"1": empty(count=3), "2": noise, "9": node(saver, images=["2", 0], filename_prefix="anim", **inputs)}
    entry = await client.run(graph)
    assert entry["outputs"]["9"]["animated"] == [True]
    [item] = entry["outputs"]["9"]["images"]
    image = Image.open(io.BytesIO(await client.download(item)))
    assert getattr(image, "n_frames", 1) == 3
    image.load()
    assert image.info["duration"] == 100


async def test_single_frame_makes_a_still_image(client: Client) -> None:
    saver = node("SaveAnimatedPNG", images=["1", 0], filename_prefix="one", fps=5.0, compress_level=4)
    entry = await client.run({"1": empty(), "9": saver})
    assert set(entry["outputs"]["9"]) == {"images"}


def opened(content: bytes) -> Any:
    return av.open(io.BytesIO(content))


@pytest.mark.parametrize("codec", ["vp9", "av1"])
async def test_webm_supports_both_codecs_and_odd_sizes(codec: str, client: Client) -> None:
    width = 65 if codec == "vp9" else 64
    saver = node("SaveWEBM", images=["1", 0], filename_prefix="w", codec=codec, fps=12.5, crf=40.0)
    entry = await client.run({"1": empty(width, 64, count=5), "9": saver})
    [item] = entry["outputs"]["9"]["images"]
    with opened(await client.download(item)) as video:
        stream = video.streams.video[0]
        assert (stream.width, stream.height, float(stream.average_rate)) == (width, 64, 12.5)
        assert stream.codec_context.name in {"vp9": ("vp9", "libvpx-vp9"), "av1": ("libdav1d", "av1")}[codec]
        assert len(list(video.decode(video=0))) == 5
        assert "prompt" in {name.lower() for name in video.metadata}


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="only for root does the encoder change it")
def test_av1_encoder_does_not_leave_a_real_time_thread(tmp_path: Path) -> None:
    parts = VideoComponents(images=[Image.new("RGB", (64, 64))] * 5, audio=None, fps=Fraction(5))
    write_webm(tmp_path / "a.webm", parts, codec="av1", crf=40, metadata={})
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


async def test_mp4_has_frames_rate_and_colours(client: Client) -> None:
    video = node("CreateVideo", images=["1", 0], fps=8.0)
    saver = node("SaveVideo", video=["2", 0], filename_prefix="v/clip", format="auto", codec="auto")
    entry = await client.run({"1": empty(64, 48, count=16, color=0x0000FF), "2": video, "9": saver})
    assert entry["outputs"]["9"]["animated"] == [True]
    [item] = entry["outputs"]["9"]["images"]
    with opened(await client.download(item)) as written:
        stream = written.streams.video[0]
        assert (stream.codec_context.name, stream.width, stream.height) == ("h264", 64, 48)
        assert float(stream.average_rate) == 8.0
        frames = [frame.to_image() for frame in written.decode(video=0)]
        assert json.loads(written.metadata["prompt"])["9"] == saver
    assert len(frames) == 16
    red, _, blue = frames[3].getpixel((10, 10))
    assert blue > 200
    assert red < 60


async def test_sound_is_carried_through(client: Client) -> None:
    _write_clip_with_sound(client.simulator.folder / "input" / "sound.mp4")
    graph = {
        "1": node("LoadVideo", file="sound.mp4"),
        "2": node("GetVideoComponents", video=["1", 0]),
        "3": node("ImageInvert", image=["2", 0]),
        "4": node("CreateVideo", images=["3", 0], fps=["2", 2], audio=["2", 1]),
        "9": node("SaveVideo", video=["4", 0], filename_prefix="inv", format="mp4", codec="h264"),
    }
    # The run is repeated under another name, because cached sound must be unchanged.
    for prefix in ("inv", "again"):
        graph["9"]["inputs"]["filename_prefix"] = prefix
        entry = await client.run(graph)
        [item] = entry["outputs"]["9"]["images"]
        with opened(await client.download(item)) as video:
            assert len(list(video.decode(video=0))) == 10
        with opened(await client.download(item)) as video:
            frames = list(video.decode(audio=0))
            seconds = sum(frame.samples for frame in frames) / frames[0].sample_rate
            assert 0.9 < seconds < 1.2
            assert frames[0].layout.name == "mono"


def _write_clip_with_sound(path: Path) -> None:
    rate = 22050
    tone = io.BytesIO()
    with wave.open(tone, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        samples = (int(9000 * math.sin(2 * math.pi * 440 * n / rate)) for n in range(rate))
        file.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    tone.seek(0)
    with av.open(str(path), "w") as container, av.open(tone, "r") as source:
        stream: Any = container.add_stream("libx264", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        sound: Any = container.add_stream("aac", rate=rate)
        sound.layout = "mono"
        for number in range(10):
            frame = av.VideoFrame.from_image(Image.new("RGB", (32, 32), (number * 20,) * 3))  # type: ignore[no-untyped-call]
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        for piece in source.decode(audio=0):
            piece.pts = None
            container.mux(sound.encode(piece))
        container.mux(sound.encode(None))


async def test_video_without_sound_has_none(client: Client) -> None:
    graph = {
        "1": node("LoadVideo", file="rec.mp4"),
        "2": node("GetVideoComponents", video=["1", 0]),
        "3": node("PreviewAny", source=["2", 1]),
        "9": save("2"),
    }
    entry = await client.run(graph)
    assert entry["outputs"]["3"]["text"] == ["None"]
    assert len(entry["outputs"]["9"]["images"]) == 16


async def test_odd_size_fails_in_h264(client: Client) -> None:
    video = node("CreateVideo", images=["1", 0], fps=8.0)
    saver = node("SaveVideo", video=["2", 0], filename_prefix="odd", format="mp4", codec="h264")
    error = error_of(await client.run({"1": empty(63, 48), "2": video, "9": saver}))
    assert error["exception_type"] == "av.error.ExternalError"
    assert error["node_type"] == "SaveVideo"


async def test_corrupt_video_fails_when_it_is_decoded(client: Client) -> None:
    (client.simulator.folder / "input" / "bad.mp4").write_bytes(b"no video" * 100)
    graph = {
        "1": node("LoadVideo", file="bad.mp4"),
        "2": node("GetVideoComponents", video=["1", 0]),
        "9": save("2"),
    }
    error = error_of(await client.run(graph))
    assert error["exception_type"] == "av.error.InvalidDataError"
    assert error["node_type"] == "GetVideoComponents"
    assert error["executed"] == ["1"]


async def test_oversized_batch_runs_out_of_memory(client: Client) -> None:
    error = error_of(await client.run({"1": empty(16384, 16384, count=4096), "9": save("1")}))
    assert error["exception_type"] == "RuntimeError"
    assert "can't allocate memory" in error["exception_message"]


async def test_truncated_picture_loads_without_error(client: Client) -> None:
    file = io.BytesIO()
    Image.effect_noise((64, 64), 90).convert("RGB").save(file, "PNG")
    (client.simulator.folder / "input" / "cut.png").write_bytes(file.getvalue()[: len(file.getvalue()) // 2])
    [image] = await images_of(client, invert_graph("cut.png"), "3")
    assert image.size == (64, 64)


async def test_prefix_outside_the_folder_fails_when_it_runs(client: Client) -> None:
    entry = await client.run({"1": empty(), "9": node("SaveImage", images=["1", 0], filename_prefix="../../evil")})
    error = error_of(entry)
    assert error["exception_type"] == "Exception"
    assert "Saving image outside the output folder is not allowed" in error["exception_message"]


async def test_text_where_an_image_belongs_fails_when_it_runs(client: Client) -> None:
    error = error_of(await client.run({"9": node("SaveImage", images="no image", filename_prefix="x")}))
    assert error["current_inputs"]["images"] == ["no image"]


def prompted(text: str, *, seed: int, checkpoint: str = "simulator.safetensors") -> Graph:
    settings = {"steps": 1, "cfg": 1, "sampler_name": "euler", "scheduler": "normal", "denoise": 1}
    sources = {"model": ["1", 0], "positive": ["2", 0], "negative": ["2", 0], "latent_image": ["3", 0]}
    return {
        "1": node("CheckpointLoaderSimple", ckpt_name=checkpoint),
        "2": node("CLIPTextEncode", text=text, clip=["1", 1]),
        "3": node("EmptyLatentImage", width=64, height=32, batch_size=2),
        "4": node("KSampler", seed=seed, **sources, **settings),
        "5": node("VAEDecode", samples=["4", 0], vae=["1", 2]),
        "9": save("5"),
    }


@pytest.mark.parametrize(
    ("started_with", "asked_for", "is_shown"),
    [
        ("none", None, False),
        ("none", "auto", True),
        ("auto", None, True),
        ("auto", "none", False),
        *full_only(("none", "?", False)),
    ],
)
async def test_sampler_sends_previews_if_enabled(started_with: str, asked_for: str | None, is_shown: bool) -> None:
    async with Simulator(preview_method=started_with) as simulator:
        client = Client(simulator)
        async with client.http, listening(simulator, flags={"supports_preview_metadata": True}) as listener:
            graph = prompted("a cat", seed=1)
            graph["4"]["inputs"]["steps"] = 3
            extra = {"preview_method": asked_for} if asked_for else {}
            prompt_id = str(uuid4())
            body = {"prompt": graph, "prompt_id": prompt_id, "client_id": listener.client_id, "extra_data": extra}
            assert (await client.http.post("/prompt", json=body)).is_success
            await listener.wait_for_end(prompt_id)
    steps = [message["data"] for message in listener.messages if message["type"] == "progress"]
    assert [(step["value"], step["max"], step["node"]) for step in steps] == [(1, 3, "4"), (2, 3, "4"), (3, 3, "4")]
    frames = [parse_frame(frame) for frame in listener.frames]
    assert bool(frames) is is_shown
    for frame in frames:
        assert frame is not None
        assert (frame.prompt_id, frame.node_id, frame.mime_type) == (prompt_id, "4", "image/jpeg")
        assert Image.open(io.BytesIO(frame.image)).size == (256, 128)


async def test_images_depend_on_prompt_and_seed(client: Client) -> None:
    requests = [("a cat", 1), ("a cat", 2), ("a dog", 1)]
    rendered = [await images_of(client, prompted(text, seed=seed)) for text, seed in requests]
    assert {image.size for images in rendered for image in images} == {(64, 32)}
    assert len({image.tobytes() for images in rendered for image in images}) == 6
    # Empty the server's cache.
    await client.http.post("/free", json={"free_memory": True})
    again = await images_of(client, prompted("a cat", seed=1))
    assert [image.tobytes() for image in again] == [image.tobytes() for image in rendered[0]]


async def test_image_to_image_templates_run(client: Client) -> None:
    """Image to image, with a mask, a LoRA or a second size: the output depends on the input image."""
    Image.new("RGB", (64, 32), "red").save(client.simulator.folder / "input" / "red.png")
    graph = prompted("a cat", seed=1) | {
        "3": node("VAEEncode", pixels=["6", 0], vae=["1", 2]),
        "6": node("LoadImage", image="red.png"),
    }
    [sampled] = await images_of(client, graph)
    assert sampled.size == (64, 32)
    graph["5"]["inputs"]["samples"] = ["3", 0]
    [same] = await images_of(client, graph)
    assert same.getpixel((5, 5)) == (255, 0, 0)
    assert sampled.tobytes() != same.tobytes()
    lora = {"lora_name": "simulator.safetensors", "strength_model": 1.0}
    graph |= {
        "3": node("VAEEncodeForInpaint", pixels=["6", 0], vae=["1", 2], mask=["6", 1], grow_mask_by=6),
        "7": node("LoraLoaderModelOnly", model=["1", 0], **lora),
        "8": node("LatentUpscaleBy", samples=["4", 0], upscale_method="bislerp", scale_by=2.0),
    }
    graph["4"]["inputs"]["model"] = ["7", 0]
    graph["5"]["inputs"]["samples"] = ["8", 0]
    [large] = await images_of(client, graph)
    assert large.size == (128, 64)


async def test_broken_checkpoint_fails_on_loading(client: Client) -> None:
    error = error_of(await client.run(prompted("a cat", seed=1, checkpoint="broken.safetensors")))
    assert "Could not detect the type of this model" in error["exception_message"]


async def test_output_can_be_the_input_of_a_run(client: Client) -> None:
    entry = await client.run(invert_graph(prefix="first"))
    [item] = entry["outputs"]["3"]["images"]
    [image] = await images_of(client, invert_graph(f"{item['filename']} [output]", "second"), "3")
    assert image.tobytes() == Image.open(RECORDINGS / "rec.png").convert("RGB").tobytes()
