#!/bin/bash

# Parameters
#SBATCH --account=lab
#SBATCH --array=0-2%2
#SBATCH --constraint=infiniband
#SBATCH --cpus-per-task=96
#SBATCH --error='/shared/dossier à moi/sweeps/s/jobs/0123456789/%A_%a_0_log.err'
#SBATCH --exclude='n[3-4],n9'
#SBATCH --exclusive
#SBATCH --gpus-per-node=h100:8
#SBATCH --hold
#SBATCH --job-name=rlsweep:s:0123456789
#SBATCH --mem=0
#SBATCH --nodes=10
#SBATCH --ntasks-per-node=1
#SBATCH --open-mode=append
#SBATCH --output='/shared/dossier à moi/sweeps/s/jobs/0123456789/%A_%a_0_log.out'
#SBATCH --partition=gpu
#SBATCH --qos=normal
#SBATCH --requeue
#SBATCH --signal=USR2@300
#SBATCH --time=1440

# setup
export HF_HOME='/shared/dossier à moi/cache/huggingface'
export HF_HUB_CACHE='/shared/dossier à moi/cache/huggingface/hub'
export HUGGINGFACE_HUB_CACHE='/shared/dossier à moi/cache/huggingface/hub'
export HF_DATASETS_CACHE='/shared/dossier à moi/cache/huggingface/datasets'
export HF_ASSETS_CACHE='/shared/dossier à moi/cache/huggingface/assets'
export TRANSFORMERS_CACHE='/shared/dossier à moi/cache/huggingface/hub'
export HF_HUB_OFFLINE=1
export TRANSFORMERS_OFFLINE=1
export HF_DATASETS_OFFLINE=1
export XDG_CACHE_HOME=/tmp/rlsweep-1000/xdg
export TRITON_CACHE_DIR=/tmp/rlsweep-1000/triton
export TORCHINDUCTOR_CACHE_DIR=/tmp/rlsweep-1000/inductor
export TORCH_EXTENSIONS_DIR=/tmp/rlsweep-1000/extensions
export CUDA_CACHE_PATH=/tmp/rlsweep-1000/cuda
export VLLM_CACHE_ROOT=/tmp/rlsweep-1000/vllm
export VLLM_CONFIG_ROOT=/tmp/rlsweep-1000/vllm-config
export FLASHINFER_WORKSPACE_BASE=/tmp/rlsweep-1000/flashinfer
export PYTHONUTF8=1
export PYTHONUNBUFFERED=1
export SUBMITIT_LOG_LEVEL=INFO
export NCCL_DEBUG=WARN
export GREETING='it'"'"'s here'
export SRUN_CPUS_PER_TASK=96
eval 'module load cuda/12.8' || { printf '%s\n' 'rlsweep: setup line 1 failed: module load cuda/12.8' >&2; exit 1; }
eval 'ulimit -n 65536' || { printf '%s\n' 'rlsweep: setup line 2 failed: ulimit -n 65536' >&2; exit 1; }

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output '/shared/dossier à moi/sweeps/s/jobs/0123456789/%A_%a_%t_log.out' --error '/shared/dossier à moi/sweeps/s/jobs/0123456789/%A_%a_%t_log.err' --kill-on-bad-exit=1 --wait=60 --export=ALL --container-image=/shared/images/rlsweep.sqsh --container-mounts=/shared:/shared sh -c 'trap "" USR2; exec "$0" "$@"' /usr/bin/python3 -u -m submitit.core._submit '/shared/dossier à moi/sweeps/s/jobs/0123456789'
