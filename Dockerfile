# docker build -t recursive-reasoning .                               CPU
# docker build -t recursive-reasoning --build-arg DEVICE=cuda .       CUDA: docker run --gpus all
# docker run --rm -v data:/workspace/data -v checkpoints:/workspace/checkpoints recursive-reasoning \
#     recursive-reasoning solve puzzle=...                            or: python pretrain.py ...
ARG PYTHON=3.12
FROM python:${PYTHON}-slim

LABEL org.opencontainers.image.title="recursive-reasoning" \
      org.opencontainers.image.description="Train, evaluate and try recursive reasoning models" \
      org.opencontainers.image.licenses="Apache-2.0"

# cpu: the small build of torch. cuda: PyPI's build, and the C++ compiler with which it compiles models.
ARG DEVICE=cpu
ARG EXTRAS=data,hub,pictures
ENV PATH=/opt/venv/bin:$PATH PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1

RUN if [ "$DEVICE" = cuda ]; then \
        apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*; \
    fi
RUN useradd --create-home --uid 1000 reasoner \
    && mkdir -p /opt/venv /workspace/data /workspace/checkpoints \
    && chown -R reasoner:reasoner /opt/venv /workspace
USER reasoner
WORKDIR /workspace

# Dependencies before code: this layer is built anew only when one of these two files changes.
COPY --chown=reasoner:reasoner pyproject.toml constraints.txt ./
RUN if [ "$DEVICE" = cpu ]; then export PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu; fi \
    && python -c "import os, tomllib; p = tomllib.load(open('pyproject.toml', 'rb')); \
extras, own = p['project']['optional-dependencies'], 'recursive-reasoning['; \
wanted = lambda names: [one for name in names.split(',') if name for each in extras[name] \
for one in (wanted(each[len(own):-1]) if each.startswith(own) else [each])]; \
print(*p['build-system']['requires'], *p['project']['dependencies'], *wanted(os.environ['EXTRAS']), sep='\n')" \
        > /tmp/requirements.txt \
    && python -m venv /opt/venv \
    && pip install -c constraints.txt -r /tmp/requirements.txt \
    && rm /tmp/requirements.txt

COPY --chown=reasoner:reasoner . .
RUN pip install --no-deps --no-build-isolation --editable .

VOLUME ["/workspace/data", "/workspace/checkpoints"]
CMD ["recursive-reasoning", "--help"]
