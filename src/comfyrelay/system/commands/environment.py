"""The environment of child processes: a fixed list of variables, so that secrets of this process stay here.

ComfyUI's custom nodes and operators' scripts run in child processes, and the environment of a server may hold cloud
credentials and database passwords under any name.
"""

import os
from collections.abc import Iterable, Mapping

# Programs need these to find files, users, libraries, the network and the GPU. None holds a secret by its purpose.
_NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "DBUS_SESSION_BUS_ADDRESS"),
        # Proxies and certificates.
        *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY", "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"),
        # Windows.
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "OS", "NUMBER_OF_PROCESSORS"),
        *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "USERPROFILE", "USERNAME", "PUBLIC"),
        *("PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "COMMONPROGRAMFILES", "HOMEDRIVE", "HOMEPATH"),
        # Folders of downloaded models, and tools of common custom nodes.
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE"),
        *("GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "IMAGEIO_FFMPEG_EXE", "GIT_PYTHON_GIT_EXECUTABLE"),
    )
)
# Families of variables: locale, Python, folders, processors, and the libraries of NVIDIA, AMD, Intel and Apple GPUs.
_PREFIXES = (
    *("LC_", "PYTHON", "XDG_", "PROCESSOR_", "MALLOC_", "OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_"),
    *("CUDA_", "NVIDIA_", "CUBLAS_", "CUDNN_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "XFORMERS_"),
    *("HIP_", "HSA_", "ROCM_", "ROCR_", "ROCBLAS_", "HIPBLASLT_", "MIOPEN_", "AMD_", "FLASH_ATTENTION_"),
    *("ONEAPI_", "SYCL_", "ZE_", "IPEX_", "MTL_"),
)


def inherited_environment(more: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that child processes may see: the fixed list, and `more`, which the operator named."""
    named = {name.upper() for name in more}
    found = os.environ if environment is None else environment
    return {
        name: value
        for name, value in found.items()
        # Proxies are often in lower case, and Windows ignores case.
        if name.upper() in _NAMES or name.upper() in named or name.upper().startswith(_PREFIXES)
    }
