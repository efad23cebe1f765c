# attncheck with a CPU build of torch: docker build -t attncheck . && docker run attncheck run builtin:gqa
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY attncheck attncheck
COPY probes probes
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu /wheels/*.whl \
    && useradd --create-home attncheck
USER attncheck
WORKDIR /work
HEALTHCHECK CMD ["attncheck", "--version"]
ENTRYPOINT ["attncheck"]
CMD ["run", "builtin:gqa"]
