# The command line with its recipes and agents, for a CPU:
#
#   docker build --tag areal-actors .
#   docker run --rm --interactive --tty --volume "$PWD/runs:/work/runs" areal-actors run gsm8k_grpo
#
# For NVIDIA devices: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130, and `docker run --gpus all`.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY areal_actors areal_actors
COPY bus bus
COPY agents agents
COPY recipes recipes
COPY scripts/locks/build.txt /wheels/build.txt
RUN python -m pip install --no-cache-dir --require-hashes --requirement /wheels/build.txt \
    && python -m build --wheel --no-isolation --outdir /wheels bus \
    && python -m build --wheel --no-isolation --outdir /wheels

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY scripts/locked.sh scripts/locks/image.txt /wheels/
COPY --from=build /wheels /wheels
RUN case "$TORCH_INDEX" in */cpu) kind=cpu ;; *) kind=cuda ;; esac \
    && bash /wheels/locked.sh "$kind" /wheels/image.txt > /wheels/locked.txt \
    && python -m pip install --no-cache-dir --no-deps --index-url "$TORCH_INDEX" "$(grep -o '^torch==[^ ]*' /wheels/image.txt)" \
    && python -m pip install --no-cache-dir --no-deps --require-hashes --requirement /wheels/locked.txt \
    && python -m pip install --no-cache-dir --no-deps /wheels/*.whl
RUN useradd --create-home --uid 1000 areal \
    && install --directory --owner areal /work /work/runs
USER 1000
WORKDIR /work
ENTRYPOINT ["areal-actors"]
CMD ["--help"]
