#!/usr/bin/env bash
# Train on SLURM, with one task per node that runs torchrun:
#
#     sbatch scripts/launch_slurm.sh run_name=mine data_path=data/arc-2-aug-1000 ...
#
# Start it in the project's folder; all nodes must see this folder and the data. Before the time limit, or
# when the job is preempted, all ranks save and exit with 75; the job then goes back into the queue and
# resumes. Any other exit code ends the job.
#
# Change nodes, GPUs, CPUs, time and partition below, or on sbatch's command line. Environment variables:
# PYTHON is the interpreter (default .venv/bin/python), RANKS_PER_NODE the ranks per node (default: the GPUs).
#SBATCH --job-name=recursive-reasoning
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
# SIGTERM 180 s before the end, to torchrun and the ranks but not to this script.
#SBATCH --signal=TERM@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.out
set -uo pipefail
cd "${SLURM_SUBMIT_DIR:?is set by sbatch}" || exit 2

# Seconds that torchrun gives the ranks to save before it kills them (its default is 30).
export TORCH_ELASTIC_SHUTDOWN_TIMEOUT=150

hosts=$(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${hosts%%$'\n'*}
port=$((20000 + SLURM_JOB_ID % 20000))

# The run keeps its name when the job is requeued; run_name= or checkpoint_path= in "$@" override it.
# --kill-on-bad-exit=0: a node that exits with 75 must not kill the nodes that are still saving.
srun --kill-on-bad-exit=0 --wait=300 \
    "${PYTHON:-.venv/bin/python}" scripts/launch.py \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="${RANKS_PER_NODE:-gpu}" \
    --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-conf=read_timeout=1800 --max-restarts=3 \
    pretrain.py run_name="slurm-$SLURM_JOB_ID" "$@"
code=$?

if [ "$code" -eq 75 ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
