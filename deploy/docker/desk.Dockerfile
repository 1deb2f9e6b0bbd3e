# The desk, with the simulator. ComfyUI is not included.
#
#   make images

# The tag is for readers, the digest for Docker; docs/howto/containers.md explains how to update both.
ARG PYTHON_IMAGE=python:3.13.14-slim-bookworm@sha256:9d7f287598e1a5a978c015ee176d8216435aaf335ed69ac3c38dd1bbb10e8d64

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1
WORKDIR /build
# The image needs no pip: the pip of this stage installs into the environment.
RUN python -m venv --without-pip /opt/comfyrelay
# The versions that were tested, pinned by hash. They change rarely, so they get a separate layer.
COPY requirements/desk.txt requirements/
RUN python -m pip --python /opt/comfyrelay/bin/python install --require-hashes --requirement requirements/desk.txt
# The wheel of `make dist`, as it is published.
COPY dist/*.whl dist/
RUN python -m pip --python /opt/comfyrelay/bin/python install --no-deps dist/*.whl

FROM ${PYTHON_IMAGE}
RUN groupadd --gid 10001 comfyrelay \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/comfyrelay comfyrelay \
    && install --directory --owner comfyrelay --group comfyrelay --mode 0700 /var/lib/comfyrelay
COPY --from=build /opt/comfyrelay /opt/comfyrelay
ENV PATH=/opt/comfyrelay/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    COMFYRELAY_DATA_DIR=/var/lib/comfyrelay
WORKDIR /var/lib/comfyrelay
VOLUME /var/lib/comfyrelay
USER 10001:10001
EXPOSE 8420
# The image has no curl.
HEALTHCHECK --interval=10s --timeout=5s --start-period=90s --retries=3 \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8420/healthz', timeout=4)"]
ENTRYPOINT ["comfyrelay"]
CMD ["up"]
