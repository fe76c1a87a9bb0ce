# Two images from one file, by target: `controller` (no torch) and `trainer` (the same, with torch and the examples).
#
# On x86-64, the torch of Python's package index brings several gigabytes of CUDA libraries. For a small image, name
# an index with CPU builds when you build:
#   docker compose build --build-arg PIP_EXTRA_INDEX_URL=<index> trainer

FROM python:3.11.13-slim-bookworm AS venv
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN python -m venv /opt/trainswitch
ENV PATH=/opt/trainswitch/bin:$PATH
WORKDIR /src
COPY constraints.txt .

FROM venv AS build-controller
COPY . .
RUN pip install --constraint constraints.txt ".[controller]"

FROM venv AS build-trainer
ARG PIP_EXTRA_INDEX_URL
# Before the sources, so that changing them does not fetch torch again.
RUN pip install --constraint constraints.txt torch
COPY . .
RUN pip install --constraint constraints.txt ".[torch]"

FROM python:3.11.13-slim-bookworm AS runtime
# 65534 is the user of the Prometheus and Alertmanager images, too: one user can read the token files and the
# target files that these containers share, and nobody else needs to.
RUN for folder in control targets checkpoints; do \
      install -d -o 65534 -g 65534 -m 0750 "/var/lib/trainswitch/$folder"; \
    done \
 && install -d -o 65534 -g 65534 -m 0750 /var/lib/trainswitch-controller
ENV PATH=/opt/trainswitch/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/tmp \
    TRAINSWITCH_HOME=/var/lib/trainswitch
WORKDIR /app
USER 65534:65534

FROM runtime AS trainer
COPY --from=build-trainer /opt/trainswitch /opt/trainswitch
COPY examples examples
CMD ["python", "examples/train_gpt.py"]

# Last, so that it is what `docker build .` makes.
FROM runtime AS controller
COPY --from=build-controller /opt/trainswitch /opt/trainswitch
EXPOSE 9095
CMD ["trainswitch", "serve", "--host", "0.0.0.0"]
