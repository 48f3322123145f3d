#!/usr/bin/env bash
# Submit a training on several machines to Slurm: srun starts torchrun once on each, torchrun the workers.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/slurm.sh --nodes N --per-node N [OPTIONS] -- DATA [ARGUMENTS FOR fairseq-train]

Writes a job for Slurm and hands it to sbatch. All workers train one model; with the architectures of the plugin
the 25 000 tokens of an update are divided among them. A job that Slurm stops and queues again goes on from its
last checkpoint; DATA and --save-dir must lie where all machines see them.

  --nodes N        machines
  --per-node N     workers on each: its GPUs, or with --cpu among the arguments any number
  --time LIMIT     as in sbatch (default: 1-00:00:00)
  --port N         a free port of the first machine (default: 29500)
  --dry-run        print the job instead
  --help           this text

Partition, account and the like are environment variables of sbatch: SBATCH_PARTITION, SBATCH_ACCOUNT ...
Example:
  bash scripts/slurm.sh --nodes 2 --per-node 8 -- data/bin --user-dir vaswani_plugin --arch vaswani2017_big
TEXT
}

die() { echo "slurm.sh: $*" >&2; exit 1; }

nodes="" per_node="" limit=1-00:00:00 port=29500 dry=no
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --dry-run) dry=yes; shift; continue ;;
        --) shift; break ;;
        --nodes | --per-node | --time | --port) [ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a value; see --help" ;;
        *) die "unknown argument '$1'; what is for fairseq-train comes after --" ;;
    esac
    case $1 in
        --nodes) nodes=$2 ;;
        --per-node) per_node=$2 ;;
        --time) limit=$2 ;;
        --port) port=$2 ;;
    esac
    shift 2
done
for name in nodes per_node port; do
    [[ ${!name} =~ ^[1-9][0-9]{0,4}$ ]] || die "--${name/_/-} must be a number above 0, not '${!name}'"
done
[[ $limit =~ ^[0-9:-]+$ ]] || die "--time must be a time of Slurm such as 1-00:00:00, not '$limit'"
[ $# -ge 1 ] || die "DATA is missing, the directory of fairseq-preprocess; see --help"

gpus="#SBATCH --gpus-per-node=$per_node"
for word in "$@"; do [ "$word" != --cpu ] || gpus="#SBATCH --cpus-per-task=$per_node"; done
job=$(
    cat <<TEXT
#!/usr/bin/env bash
#SBATCH --job-name=vaswani
#SBATCH --nodes=$nodes
#SBATCH --ntasks-per-node=1
$gpus
#SBATCH --time=$limit
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=slurm-%j.log
set -euo pipefail
read -r first < <(scontrol show hostnames "\$SLURM_JOB_NODELIST")
srun torchrun --no-python --nnodes $nodes --nproc-per-node $per_node --rdzv-backend c10d \\
    --rdzv-id "\$SLURM_JOB_ID" --rdzv-endpoint "\$first:$port" \\
    fairseq-train$(printf ' %q' "$@")
TEXT
)
if [ $dry = yes ]; then
    printf '%s\n' "$job"
    exit 0
fi
command -v sbatch >/dev/null || die "sbatch is not on PATH: this is no machine of a Slurm cluster (--dry-run prints the job)"
sbatch <<<"$job"
