# What measures, in one image, with nvcc for the kernels that FlashInfer compiles. docs/kuberay.yaml and docs/slurm.sbatch run it:
# docker build --build-arg EXTRAS=fa3,fa4 --build-arg COMMIT="$(git rev-parse --short=12 HEAD)" -t registry.example.com/attention-orchestrator .
# The CUDA of torch in requirements.txt, with its compilers; another base, such as a mirror's, is --build-arg BASE=...
ARG BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04
FROM ${BASE}

# Triton compiles its launchers with gcc and Python's headers. git tells the commit of a checkout that is mounted, whoever owns it.
RUN apt-get update \
    && apt-get install -y --no-install-recommends build-essential ca-certificates git python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/* \
    && git config --system --add safe.directory '*' \
    && python3 -m venv /opt/venv
ENV PATH=/opt/venv/bin:${PATH}

WORKDIR /app
COPY requirements.txt ./
RUN pip install --no-cache-dir -r requirements.txt

# Optional dependencies of pyproject.toml, with commas between them.
ARG EXTRAS=run
COPY pyproject.toml setup.py README.md LICENSE ./
COPY attention_orchestrator attention_orchestrator
COPY conf conf
COPY kernels kernels
COPY orchestrator orchestrator
RUN pip install --no-cache-dir --constraint requirements.txt --editable ".[${EXTRAS}]"

# The commit that rows name: an image has no .git.
ARG COMMIT=
ENV ORCHESTRATOR_COMMIT=${COMMIT}
CMD ["attention-orchestrator", "--help"]
