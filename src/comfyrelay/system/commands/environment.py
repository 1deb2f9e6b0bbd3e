"""The environment of child processes: a fixed list of variables, so that secrets of this process stay here.

ComfyUI's custom nodes and operators' scripts run in child processes, and the environment of a server may hold cloud
credentials and database passwords under any name.
"""

import os
import re
from collections.abc import Iterable, Mapping
from functools import cache

import structlog

log = structlog.get_logger(__name__)

# Addresses that may contain a login.
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "FTP_PROXY")
_URLS = frozenset((*_PROXIES, "HF_ENDPOINT"))
# Programs need these to find files, users, libraries, the network and the GPU. None is intended for secrets.
NAMES = frozenset(
    (
        *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "TZ", "TMPDIR", "TEMP", "TMP", "LANG", "LANGUAGE"),
        *("LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_MESSAGES"),
        *("LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME"),
        *("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH"),
        *("MALLOC_ARENA_MAX", "MALLOC_CONF", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"),
        *("VIRTUAL_ENV", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "DBUS_SESSION_BUS_ADDRESS"),
        *("XDG_CACHE_HOME", "XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "XDG_DATA_DIRS", "XDG_DATA_HOME"),
        *("XDG_RUNTIME_DIR", "XDG_STATE_HOME"),
        # Python.
        *("PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONDONTWRITEBYTECODE", "PYTHONFAULTHANDLER", "PYTHONHASHSEED"),
        *("PYTHONHOME", "PYTHONIOENCODING", "PYTHONMALLOC", "PYTHONNOUSERSITE", "PYTHONOPTIMIZE", "PYTHONPATH"),
        *("PYTHONPYCACHEPREFIX", "PYTHONSAFEPATH", "PYTHONTRACEMALLOC", "PYTHONUNBUFFERED", "PYTHONUSERBASE"),
        *("PYTHONUTF8", "PYTHONWARNINGS"),
        # Proxies and certificates.
        *(*_PROXIES, "NO_PROXY"),
        *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO"),
        # Windows.
        *("SYSTEMROOT", "SYSTEMDRIVE", "WINDIR", "COMSPEC", "PATHEXT", "OS", "NUMBER_OF_PROCESSORS"),
        *("PROCESSOR_ARCHITECTURE", "PROCESSOR_ARCHITEW6432", "PROCESSOR_IDENTIFIER", "PROCESSOR_LEVEL"),
        *("APPDATA", "LOCALAPPDATA", "PROGRAMDATA", "ALLUSERSPROFILE", "USERPROFILE", "USERNAME", "PUBLIC"),
        *("PROGRAMFILES", "PROGRAMFILES(X86)", "PROGRAMW6432", "COMMONPROGRAMFILES", "HOMEDRIVE", "HOMEPATH"),
        # Folders of downloaded models, and tools of common custom nodes.
        *("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_ENDPOINT", "TRANSFORMERS_CACHE", "TRANSFORMERS_OFFLINE"),
        *("GPU_DEVICE_ORDINAL", "GPU_MAX_HW_QUEUES", "IMAGEIO_FFMPEG_EXE", "GIT_PYTHON_GIT_EXECUTABLE"),
        *("NVIDIA_DISABLE_REQUIRE", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_TF32_OVERRIDE"),
        *("NVIDIA_VISIBLE_DEVICES", "AMD_DIRECT_DISPATCH", "AMD_LOG_LEVEL", "AMD_SERIALIZE_COPY"),
        *("AMD_SERIALIZE_KERNEL",),
    )
)
# Libraries for threads and for NVIDIA, AMD, Intel and Apple GPUs, which each read dozens of variables.
PREFIXES = (
    *("OMP_", "MKL_", "KMP_", "GOMP_", "OPENBLAS_", "NUMEXPR_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_", "TRITON_", "XFORMERS_"),
    *("HIP_", "HSA_", "ROCM_", "ROCR_", "ROCBLAS_", "HIPBLASLT_", "MIOPEN_", "FLASH_ATTENTION_"),
    *("ONEAPI_", "SYCL_", "ZE_", "IPEX_", "MTL_"),
)
# A variable with such a word in its name counts as a secret, even if it has one of these prefixes.
SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTH")


def inherited_environment(more: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables that child processes may see: the fixed list, and `more`, which the operator has listed.

    Logins are removed from addresses, unless the operator has listed the variable.
    """
    named = {name.upper() for name in more}
    found = os.environ if environment is None else environment
    # Names of proxy variables are often in lower case, and Windows ignores case.
    return {
        name: value if name.upper() in named else _without_login(name, value)
        for name, value in found.items()
        if name.upper() in named or _is_inherited(name.upper())
    }


def _is_inherited(name: str) -> bool:
    if name in NAMES:
        return True
    return name.startswith(PREFIXES) and not any(word in name for word in SECRET_WORDS)


def _without_login(name: str, value: str) -> str:
    if name.upper() not in _URLS or "@" not in value:
        return value
    _log_login(name)
    # A password may contain any character, so only the last @ ends it.
    return re.sub(r"^(\w[\w+.-]*://)?.*@", r"\1", value, flags=re.DOTALL)


@cache
def _log_login(name: str) -> None:
    """Log each variable only once, because some commands run often."""
    log.warning("environment.login_removed", variable=name)
