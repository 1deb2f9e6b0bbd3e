"""The node classes that read, make and save videos and animations."""

from comfyrelay.sim.nodes.definitions import Listing
from comfyrelay.sim.nodes.inputs import extra, number, one_of, prefix, video, whole

ANIMATIONS = (
    extra(
        "SaveAnimatedWEBP",
        "image/animation",
        required={
            "images": ["IMAGE", {}],
            "filename_prefix": prefix(),
            "fps": number(6.0, 0.01, 1000.0, step=0.01),
            "lossless": ["BOOLEAN", {"default": True}],
            "quality": whole(80, 0, 100),
            "method": one_of("default", "fastest", "slowest"),
        },
        has_metadata=True,
        is_output=True,
    ),
    extra(
        "SaveAnimatedPNG",
        "image/animation",
        required={
            "images": ["IMAGE", {}],
            "filename_prefix": prefix(),
            "fps": number(6.0, 0.01, 1000.0, step=0.01),
            "compress_level": whole(4, 0, 9),
        },
        has_metadata=True,
        is_output=True,
    ),
    video(
        "SaveWEBM",
        None,
        required={
            "images": ["IMAGE", {}],
            "filename_prefix": prefix(),
            "codec": one_of("vp9", "av1"),
            "fps": number(24.0, 0.01, 1000.0, step=0.01),
            "crf": number(32.0, 0, 63.0, step=1),
        },
        has_metadata=True,
        is_output=True,
        is_experimental=True,
    ),
    video(
        "SaveVideo",
        "Save Video",
        required={
            "video": ["VIDEO", {}],
            "filename_prefix": prefix("video/ComfyUI"),
            "format": one_of("auto", "mp4", default="auto"),
            "codec": one_of("auto", "h264", default="auto"),
        },
        has_metadata=True,
        is_output=True,
    ),
    video(
        "CreateVideo",
        "Create Video",
        required={"images": ["IMAGE", {}], "fps": number(30.0, 1.0, 120.0, step=1.0)},
        optional={"audio": ["AUDIO", {}]},
        output=("VIDEO",),
    ),
    video(
        "GetVideoComponents",
        "Get Video Components",
        required={"video": ["VIDEO", {}]},
        output=("IMAGE", "AUDIO", "FLOAT"),
        output_name=("images", "audio", "fps"),
    ),
    video(
        "LoadVideo",
        "Load Video",
        required={"file": ["COMBO", {"multiselect": False, "options": Listing.INPUT_VIDEOS, "video_upload": True}]},
        output=("VIDEO",),
        file_input="file",
        file_noun="video",
    ),
)
