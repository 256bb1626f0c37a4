# The command line with its recipes and agents, for a CPU:
#
#   docker build --tag areal .
#   docker run --rm --interactive --tty --volume "$PWD/runs:/work/runs" areal run gsm8k_grpo
#
# For NVIDIA devices: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130, and `docker run --gpus all`.
FROM python:3.12-slim AS build
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY areal_actors areal_actors
COPY bus bus
COPY agents agents
COPY recipes recipes
RUN python -m pip install --no-cache-dir "build==1.4.0" \
    && python -m build --wheel --outdir /wheels

FROM python:3.12-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY scripts/locks/dev.txt /wheels/constraints.txt
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir --index-url "$TORCH_INDEX" --constraint /wheels/constraints.txt torch \
    && for wheel in /wheels/*.whl; do \
        python -m pip install --no-cache-dir --constraint /wheels/constraints.txt "${wheel}[data,otlp,reader,rewards]"; \
    done
RUN useradd --create-home --uid 1000 areal \
    && install --directory --owner areal /work /work/runs
USER 1000
WORKDIR /work
ENTRYPOINT ["areal"]
CMD ["--help"]
