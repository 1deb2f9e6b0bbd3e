"""Exported graphs: still images, image to video, video to video."""

from typing import Any

from comfyrelay.comfyui.graphs.graph import Graph

BIG = 2**64 - 1
SAMPLERS, SCHEDULERS = ["euler", "dpmpp_2m", "uni_pc"], ["normal", "karras", "simple"]


def node(class_type: str, title: str | None = None, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs, **({"_meta": {"title": title}} if title else {})}


def definition(
    title: str | None = None, *, output: bool = False, names: tuple[str, ...] = (), **inputs: Any
) -> dict[str, Any]:
    named = {} if title is None else {"display_name": title}
    return {"input": {"required": inputs}, "output_name": list(names), "output_node": output, **named}


def whole(low: int = 0, high: int = 10_000, **more: Any) -> list[Any]:
    return ["INT", {"default": low, "min": low, "max": high, **more}]


TEXT = ["STRING", {"multiline": True}]
SIDES: dict[str, Any] = {"positive": ["CONDITIONING"], "negative": ["CONDITIONING"]}
PAIR = ("positive", "negative", "latent")

# The part of the node definitions of common node packs that these graphs need.
OBJECT_INFO: dict[str, Any] = {
    "UNETLoader": definition("Load Diffusion Model", unet_name=[["wan2.2_t2v_high_noise.safetensors"]]),
    "EmptyHunyuanLatentVideo": definition(width=whole(16, step=16), height=whole(16, step=16), length=whole(1, step=4)),
    "CheckpointLoaderSimple": definition("Load Checkpoint", ckpt_name=[["sdxl/base.safetensors", "other.safetensors"]]),
    "CLIPTextEncode": definition(text=TEXT, clip=["CLIP"]),
    "CLIPTextEncodeSDXL": definition(text_g=TEXT, text_l=TEXT, width=whole(), height=whole(), clip=["CLIP"]),
    "ConditioningZeroOut": definition(conditioning=["CONDITIONING"]),
    "KSampler": definition(
        seed=whole(0, BIG), steps=whole(1), cfg=["FLOAT", {"min": 0.0, "max": 100.0, "step": 0.1}], **SIDES,
        sampler_name=[SAMPLERS], scheduler=[SCHEDULERS], denoise=["FLOAT", {"min": 0.0, "max": 1.0}],
    ),
    "KSamplerAdvanced": definition(
        add_noise=[["enable", "disable"]], noise_seed=whole(0, BIG), steps=whole(1), cfg=["FLOAT", {"min": 0.0}],
        **SIDES, sampler_name=[SAMPLERS], scheduler=[SCHEDULERS], start_at_step=whole(), end_at_step=whole(),
        return_with_leftover_noise=[["disable", "enable"]],
    ),
    "LoadImage": definition(image=[["here.png"], {"image_upload": True}]),
    "WanImageToVideo": definition(
        names=PAIR, **SIDES, width=whole(16), height=whole(16), length=whole(1), batch_size=whole(1)
    ),
    "SVD_img2vid_Conditioning": definition(names=PAIR, motion_bucket_id=whole(1, 1023), video_frames=whole(1)),
    "LTXVImgToVideo": definition(names=PAIR, **SIDES, image=["IMAGE"], length=whole(9)),
    "LTXVConditioning": definition(names=PAIR[:2], **SIDES, frame_rate=["FLOAT", {"min": 0.0, "max": 1000.0}]),
    "RandomNoise": definition(noise_seed=whole(0, BIG)),
    "SaveImage": definition(output=True, images=["IMAGE"], filename_prefix=["STRING", {}]),
    "PreviewImage": definition(output=True, images=["IMAGE"]),
    "SaveAnimatedWEBP": definition(output=True, images=["IMAGE"], fps=["FLOAT", {}], lossless=["BOOLEAN", {}]),
    "SaveVideo": definition(
        output=True, video=["VIDEO"], codec=["COMBO", {"options": ["auto"]}],
        format=["COMBO", {"options": ["auto", "mp4"]}],
    ),
    "VHS_LoadVideo": definition(video=[["a.mp4", "b.mp4"]], force_rate=["FLOAT", {}], frame_load_cap=whole()),
    "VHS_LoadVideoPath": definition(
        video=["STRING", {"vhs_path_extensions": ["webm", "mp4", "mkv", "gif", "mov"]}], frame_load_cap=whole()
    ),
    "VHS_VideoCombine": definition(
        output=True, images=["IMAGE"], frame_rate=["FLOAT", {"min": 1}], loop_count=whole(),
        format=[["image/gif", "image/webp", "video/h264-mp4", "video/webm", "video/ProRes"]],
        pingpong=["BOOLEAN", {}], save_output=["BOOLEAN", {}],
    ),
    "WanVideoTextEncode": definition(positive_prompt=TEXT, negative_prompt=TEXT),
    "WanVideoSampler": definition(
        text_embeds=["WANVIDEOTEXTEMBEDS"], seed=whole(0, BIG), steps=whole(1), force_offload=["BOOLEAN", {}]
    ),
}  # fmt: skip

SDXL: Graph = {
    "4": node("CheckpointLoaderSimple", "Load Checkpoint", ckpt_name="sdxl/base.safetensors"),
    "5": node("EmptyLatentImage", "Empty Latent Image", width=1024, height=1024, batch_size=1),
    "6": node("CLIPTextEncode", "CLIP Text Encode (Prompt)", text="a red fox", clip=["4", 1]),
    "7": node("CLIPTextEncode", "CLIP Text Encode (Prompt)", text="blurry", clip=["4", 1]),
    "3": node(
        "KSampler", "KSampler", seed=156680208700286, steps=20, cfg=8, sampler_name="euler", scheduler="normal",
        denoise=1, model=["4", 0], positive=["6", 0], negative=["7", 0], latent_image=["5", 0],
    ),
    "8": node("VAEDecode", "VAE Decode", samples=["3", 0], vae=["4", 2]),
    "9": node("SaveImage", "Save Image", filename_prefix="ComfyUI", images=["8", 0]),
}  # fmt: skip

# Two samplers; the second adds no noise. Node 97 comes after the nodes that use it.
WAN: Graph = {
    "84": node("CLIPLoader", "Load CLIP", clip_name="umt5.safetensors", type="wan"),
    "85": node(
        "KSamplerAdvanced", "KSampler (Advanced)", add_noise="disable", noise_seed=0, steps=4, cfg=1,
        sampler_name="euler", scheduler="simple", start_at_step=2, end_at_step=4, return_with_leftover_noise="disable",
        model=["95", 0], positive=["98", 0], negative=["98", 1], latent_image=["86", 0],
    ),
    "86": node(
        "KSamplerAdvanced", "KSampler (Advanced)", add_noise="enable", noise_seed=206275406212235, steps=4, cfg=1,
        sampler_name="euler", scheduler="simple", start_at_step=0, end_at_step=2, return_with_leftover_noise="enable",
        model=["95", 0], positive=["98", 0], negative=["98", 1], latent_image=["98", 2],
    ),
    "87": node("VAEDecode", "VAE Decode", samples=["85", 0], vae=["90", 0]),
    "89": node("CLIPTextEncode", "Negative", text="色调艳丽 过曝", clip=["84", 0]),
    "90": node("VAELoader", "Load VAE", vae_name="wan_2.1_vae.safetensors"),
    "93": node("CLIPTextEncode", "Positive", text="the fox walks on", clip=["84", 0]),
    "94": node("CreateVideo", "Create Video", fps=16, images=["87", 0]),
    "95": node("UNETLoader", "Load Diffusion Model", unet_name="wan2.2_i2v.safetensors", weight_dtype="default"),
    "97": node("LoadImage", "Load Image", image="fox.png"),
    "98": node(
        "WanImageToVideo", "WanImageToVideo", width=640, height=640, length=81, batch_size=1,
        positive=["93", 0], negative=["89", 0], vae=["90", 0], start_image=["97", 0],
    ),
    "108": node(
        "SaveVideo", "Save Video", filename_prefix="video/ComfyUI", format="auto", codec="auto", video=["94", 0]
    ),
}  # fmt: skip

# Wan 2.2: a model for high noise and one for low noise, each with its own sampler.
WAN_22: Graph = {
    "37": node("UNETLoader", "Load Diffusion Model", unet_name="wan2.2_t2v_high_noise.safetensors"),
    "56": node("UNETLoader", "Load Diffusion Model", unet_name="wan2.2_t2v_low_noise.safetensors"),
    "54": node("ModelSamplingSD3", "ModelSamplingSD3", shift=8.0, model=["37", 0]),
    "55": node("ModelSamplingSD3", "ModelSamplingSD3", shift=8.0, model=["56", 0]),
    "38": node("CLIPLoader", "Load CLIP", clip_name="umt5.safetensors", type="wan"),
    "39": node("VAELoader", "Load VAE", vae_name="wan_2.1_vae.safetensors"),
    "6": node("CLIPTextEncode", "CLIP Text Encode (Positive Prompt)", text="a fox", clip=["38", 0]),
    "7": node("CLIPTextEncode", "CLIP Text Encode (Negative Prompt)", text="blurry", clip=["38", 0]),
    "59": node("EmptyHunyuanLatentVideo", width=1280, height=704, length=81, batch_size=1),
    "57": node(
        "KSamplerAdvanced", "KSampler (Advanced)", add_noise="enable", noise_seed=7, steps=20, cfg=3.5,
        sampler_name="euler", scheduler="simple", start_at_step=0, end_at_step=10, return_with_leftover_noise="enable",
        model=["54", 0], positive=["6", 0], negative=["7", 0], latent_image=["59", 0],
    ),
    "58": node(
        "KSamplerAdvanced", "KSampler (Advanced)", add_noise="disable", noise_seed=0, steps=20, cfg=3.5,
        sampler_name="euler", scheduler="simple", start_at_step=10, end_at_step=10_000,
        return_with_leftover_noise="disable",
        model=["55", 0], positive=["6", 0], negative=["7", 0], latent_image=["57", 0],
    ),
    "8": node("VAEDecode", "VAE Decode", samples=["58", 0], vae=["39", 0]),
    "60": node("CreateVideo", "Create Video", fps=16, images=["8", 0]),
    "61": node("SaveVideo", "Save Video", filename_prefix="v", format="auto", codec="auto", video=["60", 0]),
}  # fmt: skip

SVD: Graph = {
    "12": node(
        "SVD_img2vid_Conditioning", width=1024, height=576, video_frames=14, motion_bucket_id=127, fps=6,
        augmentation_level=0.0, clip_vision=["15", 1], init_image=["23", 0], vae=["15", 2],
    ),
    "15": node("ImageOnlyCheckpointLoader", ckpt_name="svd.safetensors"),
    "14": node("VideoLinearCFGGuidance", min_cfg=1, model=["15", 0]),
    "3": node(
        "KSampler", seed=9, steps=20, cfg=2.5, sampler_name="euler", scheduler="karras", denoise=1,
        model=["14", 0], positive=["12", 0], negative=["12", 1], latent_image=["12", 2],
    ),
    "8": node("VAEDecode", samples=["3", 0], vae=["15", 2]),
    "10": node("SaveAnimatedWEBP", filename_prefix="svd", fps=10, lossless=False, quality=85, images=["8", 0]),
    "11": node("PreviewImage", images=["8", 0]),
    "23": node("LoadImage", image="mountain.png", upload="image"),
}  # fmt: skip

LTX: Graph = {
    "6": node("CLIPTextEncode", text="a ship at sea, waves", clip=["38", 0]),
    "7": node("CLIPTextEncode", text="worst quality", clip=["38", 0]),
    "38": node("CLIPLoader", clip_name="t5xxl.safetensors", type="ltxv"),
    "44": node("CheckpointLoaderSimple", ckpt_name="ltx.safetensors"),
    "69": node("LTXVConditioning", frame_rate=25.0, positive=["77", 0], negative=["77", 1]),
    "72": node(
        "SamplerCustom", add_noise=True, noise_seed=42, cfg=3, model=["44", 0], positive=["69", 0], negative=["69", 1],
        sampler=["73", 0], sigmas=["71", 0], latent_image=["77", 2],
    ),
    "71": node("LTXVScheduler", steps=30, max_shift=2.05, latent=["77", 2]),
    "73": node("KSamplerSelect", sampler_name="euler"),
    "77": node(
        "LTXVImgToVideo", width=768, height=512, length=97, batch_size=1, positive=["6", 0], negative=["7", 0],
        vae=["44", 2], image=["78", 0],
    ),
    "78": node("LoadImage", image="ship.png"),
    "8": node("VAEDecode", samples=["72", 0], vae=["44", 2]),
    "41": node("SaveAnimatedWEBP", filename_prefix="ltx", fps=24, lossless=False, quality=90, images=["8", 0]),
}  # fmt: skip

# The wrapper has its own sampler, takes both prompts in one node, and another pack combines the frames.
WAN_WRAPPER: Graph = {
    "11": node("LoadWanVideoT5TextEncoder", model_name="umt5.safetensors", precision="bf16"),
    "16": node("WanVideoTextEncode", positive_prompt="a dog runs", negative_prompt="static", t5=["11", 0]),
    "22": node("WanVideoModelLoader", model="wan2.1_i2v.safetensors", base_precision="bf16"),
    "27": node(
        "WanVideoSampler", steps=10, cfg=6, shift=5, seed=1057359483639287, force_offload=True, scheduler="unipc",
        model=["22", 0], text_embeds=["16", 0], image_embeds=["63", 0],
    ),
    "28": node("WanVideoDecode", enable_vae_tiling=True, vae=["38", 0], samples=["27", 0]),
    "30": node(
        "VHS_VideoCombine", frame_rate=16, loop_count=0, filename_prefix="WanVideo", format="video/h264-mp4",
        pix_fmt="yuv420p", crf=19, pingpong=False, save_output=True, images=["28", 0],
    ),
    "38": node("WanVideoVAELoader", model_name="wan_vae.safetensors"),
    "58": node("LoadImage", image="dog.png"),
    "63": node("WanVideoImageToVideoEncode", width=832, num_frames=81, start_image=["58", 0], vae=["38", 0]),
}  # fmt: skip

VIDEO_TO_VIDEO: Graph = {
    "1": node("VHS_LoadVideo", video="dance.mp4", force_rate=0, frame_load_cap=32),
    "2": node("LoadImage", "Style", image="style.png"),
    "3": node("IPAdapter", image=["2", 0], model=["9", 0]),
    "4": node("VAEEncode", pixels=["1", 0], vae=["9", 2]),
    "9": node("CheckpointLoaderSimple", ckpt_name="sdxl/base.safetensors"),
    "6": node("CLIPTextEncode", text="painting", clip=["9", 1]),
    "7": node("ConditioningZeroOut", conditioning=["6", 0]),
    "8": node(
        "KSampler", seed=["10", 0], steps=20, cfg=8.0, sampler_name="euler", scheduler="normal", denoise=0.5,
        model=["3", 0], positive=["6", 0], negative=["7", 0], latent_image=["4", 0],
    ),
    "10": node("PrimitiveInt", "My seed", value=77),
    "11": node("VAEDecode", samples=["8", 0], vae=["9", 2]),
    "12": node(
        "VHS_VideoCombine", frame_rate=8, loop_count=0, filename_prefix="v2v", format="video/webm", pingpong=False,
        save_output=True, images=["11", 0], audio=["1", 2],
    ),
}  # fmt: skip

# Guider, noise, sampler and prompt are separate nodes.
FLUX: Graph = {
    "6": node("CLIPTextEncode", text=["50", 0], clip=["11", 0]),
    "11": node("DualCLIPLoader", clip_name1="t5.safetensors", clip_name2="clip_l.safetensors", type="flux"),
    "12": node("UNETLoader", unet_name="flux.safetensors", weight_dtype="default"),
    "13": node("SamplerCustomAdvanced", noise=["25", 0], guider=["22", 0], sampler=["16", 0], latent_image=["27", 0]),
    "16": node("KSamplerSelect", sampler_name="euler"),
    "22": node("BasicGuider", model=["12", 0], conditioning=["26", 0]),
    "25": node("RandomNoise", noise_seed=219670278747233),
    "26": node("FluxGuidance", guidance=3.5, conditioning=["6", 0]),
    "27": node("EmptySD3LatentImage", width=1024, height=1024, batch_size=1),
    "8": node("VAEDecode", samples=["13", 0], vae=["10", 0]),
    "10": node("VAELoader", vae_name="ae.safetensors"),
    "9": node("SaveImage", filename_prefix="flux", images=["8", 0]),
    "50": node("PrimitiveStringMultiline", "Prompt", value="a castle made of glass"),
}

ALL = {
    "sdxl": SDXL,
    "wan": WAN,
    "wan 2.2": WAN_22,
    "svd": SVD,
    "ltx": LTX,
    "wan wrapper": WAN_WRAPPER,
    "video to video": VIDEO_TO_VIDEO,
    "flux": FLUX,
}
