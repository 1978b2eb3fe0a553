# The runner in a container; how to build and run it: docs/containers.md.
ARG BASE=python:3.13-slim

FROM $BASE AS wheel
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY runner runner
COPY conf conf
COPY hydra_plugins hydra_plugins
ARG EXTRAS=export,parquet,sweep
# Whatever comes from a package index is found as the secret says, which no layer keeps.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    python3 -m venv /builder && /builder/bin/pip wheel --quiet --no-cache-dir --no-deps --wheel-dir dist .
# What the wheel needs, in a file of its own: it changes seldom, and so does the large layer that is made of it.
RUN EXTRAS="$EXTRAS" python3 -c 'import os, tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
extras = [project["optional-dependencies"][name] for name in os.environ["EXTRAS"].split(",") if name]; \
print(*project["dependencies"], *sum(extras, []), sep="\n")' >requirements.txt

FROM $BASE
RUN python3 -m venv /opt/runner
ENV PATH=/opt/runner/bin:$PATH
COPY constraints.txt /opt/runner/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --no-cache-dir --constraint /opt/runner/constraints.txt torch torchvision
# The commit of an experiment is part of its record.
RUN command -v git >/dev/null || { apt-get update --quiet=2 \
    && apt-get install --yes --quiet=2 --no-install-recommends git && rm -rf /var/lib/apt/lists/*; }
COPY --from=wheel /source/requirements.txt /opt/runner/
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install --quiet --no-cache-dir --constraint /opt/runner/constraints.txt --requirement /opt/runner/requirements.txt
COPY --from=wheel /source/dist /opt/runner/dist
RUN pip install --quiet --no-index --no-deps /opt/runner/dist/*.whl && pip check
# Asked last: images for both share the large layers above, where those are the same.
ARG DEVICE=cuda
RUN case "$DEVICE-$(python -c 'import torch, torchvision; print("cuda" if torch.version.cuda else "cpu")')" in \
    cuda-cuda | cpu-cpu) ;; \
    cuda-cpu) echo "DEVICE=cuda: torch came without CUDA; let pip's settings name an index that has it with CUDA" >&2; exit 2 ;; \
    cpu-cuda) echo "DEVICE=cpu: torch came with CUDA; let pip's settings name PyTorch's index for CPUs" >&2; exit 2 ;; \
    *-) exit 1 ;; \
    *) echo "DEVICE=$DEVICE: it is cpu or cuda" >&2; exit 2 ;; \
    esac

# Any user may run it (`--user`), also one that the image knows no name of: a home that all can write, and a name. The user's
# own folder belongs at /work: without one nothing can be written there, so that no result vanishes with the container.
RUN mkdir --mode=1777 /home/runner /home/runner/.cache && mkdir --mode=755 /work
ENV HOME=/home/runner USER=runner
# The digits are there from the start: what only reads a run that another container has trained finds them.
RUN runner validate data=digits && chmod 1777 /home/runner/.cache/runner
WORKDIR /work
USER 1000:1000
ENTRYPOINT ["runner"]
