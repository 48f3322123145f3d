#!/usr/bin/env bash
# From raw text to a scored translation with the 2017 Transformer: every step by its plain command, each shown.
set -euo pipefail

usage() {
    cat <<'TEXT'
Usage: bash scripts/quickstart.sh [OPTIONS] [-- ARGUMENTS FOR fairseq-train]

Makes .venv, fetches a parallel corpus, tokenises it, learns subwords, trains the architecture vaswani2017_tiny,
averages the last checkpoints, translates the test set and prints its BLEU, ten examples and the loss curve.
Each step prints the commands it runs. It can be stopped at any time; started again in the same way it goes on with
the step that was not finished, training from its last checkpoint.

  --minutes N      time for training, all runs together (default: 10). More than before: training goes on.
  --corpus WHICH   libreoffice: the help of LibreOffice, real text, fetched with apt-get (no root needed);
                   generated: sentences about numbers, English to German;
                   DIR: your own files train.S, train.T, valid.S, valid.T, test.S, test.T with S and T the languages
                   (default: libreoffice; generated where there is no apt-get)
  --source S       source language (default: en, or found in DIR)
  --target T       target language (default: de, or found in DIR)
  --out OUT        folder for everything that is made (default: runs/quickstart)
  --no-install     use the fairseq, torch and tools that are on PATH; make no .venv
  --help           this text

Environment variables: VENV and PYTHON, see scripts/setup_env.sh.
Examples:
  bash scripts/quickstart.sh --minutes 15
  bash scripts/quickstart.sh --corpus my/text --out runs/mine
  bash scripts/quickstart.sh --minutes 2 -- --lr-factor 0.3
TEXT
}

die() { echo "quickstart.sh: $*" >&2; exit 1; }

minutes=10 corpus=auto source="" target="" out="" install=yes extra=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) usage; exit 0 ;;
        --no-install) install=no; shift; continue ;;
        --) shift; extra=("$@"); break ;;
        --minutes | --corpus | --source | --target | --out)
            [ $# -ge 2 ] && [ -n "$2" ] || die "$1 needs a value; see --help" ;;
        *) die "unknown argument '$1'; see --help" ;;
    esac
    case $1 in
        --minutes) minutes=$2 ;;
        --corpus) corpus=$2 ;;
        --source) source=$2 ;;
        --target) target=$2 ;;
        --out) out=$2 ;;
    esac
    shift 2
done
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ && $minutes =~ [1-9] ]] || die "--minutes must be a number above 0, not '$minutes'"
case $corpus in
    auto | libreoffice | generated) ;;
    *) [ -d "$corpus" ] || die "--corpus: there is no folder '$corpus'"; corpus=$(cd "$corpus" && pwd) ;;
esac

caller=$PWD
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# Paths in the commands shown are relative to the repository where possible.
case $out in "") out=runs/quickstart ;; /*) ;; *) [ "$caller" = "$PWD" ] || out=$caller/$out ;; esac

trap 'echo; echo "Stopped. The same command goes on from here."; exit 130' INT TERM

shown() { local text; text=$(printf ' %q' "$@"); printf '+%s' "$text"; }
run() { shown "$@"; echo; "$@"; }
# run_readably COMMAND...: with fairseq's output reduced to what tells of progress
run_readably() { shown "$@"; echo; "$@" 2>&1 | python scripts/readable_log.py; }
# run_io IN OUT COMMAND...: COMMAND < IN > OUT, where OUT appears only when it is complete
run_io() {
    local in=$1 to=$2
    shift 2
    shown "$@"; printf ' < %q > %q\n' "$in" "$to"
    "$@" <"$in" >"$to.part"
    mv "$to.part" "$to"
}

if [ "$install" = yes ]; then
    bash scripts/setup_env.sh
    echo "+ . ${VENV:-.venv}/bin/activate"
    # shellcheck disable=SC1091
    . "${VENV:-.venv}/bin/activate"
else
    export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} # the plugin may not be installed there
fi
for tool in python fairseq-train sacremoses subword-nmt; do
    command -v "$tool" >/dev/null || die "$tool is not on PATH; leave --no-install out to have everything installed"
done

mkdir -p "$out/done" || die "the folder '$out' cannot be made"
# A folder belongs to one corpus: other text with the subwords and checkpoints of this would be nonsense.
identity="$corpus ${source:-?}-${target:-?}"
[ ! -d "$corpus" ] || identity+=" $(cat "$corpus"/train.* "$corpus"/valid.* "$corpus"/test.* 2>/dev/null | cksum)"
if [ -f "$out/corpus-of-this-folder" ] && [ "$(cat "$out/corpus-of-this-folder")" != "$identity" ]; then
    die "'$out' holds a run on another corpus ($(cat "$out/corpus-of-this-folder"), now $identity); choose another folder with --out"
fi
printf '%s\n' "$identity" >"$out/corpus-of-this-folder"

cores=$(python -c 'import os; print(os.cpu_count())')
steps=(corpus tokenise subwords binarise train average translate report)

# step NAME: run the function step_NAME unless its stamp says that it was done with the same settings. What comes after
# a step that runs is done again.
step() {
    local name=$1 settings=${2:-} later=no s
    if [ -f "$out/done/$name" ] && [ "$(cat "$out/done/$name")" = "$settings" ]; then
        echo "== $name: done before"
        return
    fi
    for s in "${steps[@]}"; do
        [ "$s" != "$name" ] || later=yes
        [ $later = no ] || rm -f "$out/done/$s"
    done
    echo "== $name"
    "step_$name"
    printf '%s\n' "$settings" >"$out/done/$name.part"
    mv "$out/done/$name.part" "$out/done/$name"
}

step_corpus() {
    run python scripts/demo_corpus.py --from "$corpus" ${source:+--source "$source"} ${target:+--target "$target"} \
        --packages "$out/packages" --out "$out/corpus"
}

step_tokenise() {
    mkdir -p "$out/tokenised"
    local part workers
    for part in train valid test; do
        # several processes cost seconds to start: only the large part is worth them
        [ $part = train ] && workers=$cores || workers=1
        # Punctuation is normalised on the source side only: the target is scored as people wrote it.
        run_io "$out/corpus/$part.$source" "$out/tokenised/$part.$source" \
            sacremoses -l "$source" -j "$workers" normalize tokenize
        run_io "$out/corpus/$part.$target" "$out/tokenised/$part.$target" sacremoses -l "$target" -j "$workers" tokenize
    done
}

step_subwords() {
    mkdir -p "$out/subwords"
    local part language
    run subword-nmt learn-joint-bpe-and-vocab --symbols 4000 --input "$out/tokenised/train.$source" \
        "$out/tokenised/train.$target" --output "$out/subwords/codes" \
        --write-vocabulary "$out/subwords/vocabulary.$source" "$out/subwords/vocabulary.$target"
    for part in train valid test; do
        for language in "$source" "$target"; do
            run_io "$out/tokenised/$part.$language" "$out/subwords/$part.$language" \
                subword-nmt apply-bpe --codes "$out/subwords/codes"
        done
    done
}

step_binarise() {
    rm -rf "$out/data"
    run_readably fairseq-preprocess --source-lang "$source" --target-lang "$target" --joined-dictionary \
        --trainpref "$out/subwords/train" --validpref "$out/subwords/valid" --testpref "$out/subwords/test" \
        --destdir "$out/data" --workers "$cores"
    # with the merges beside the dictionaries, training puts both beside the checkpoints, for scripts/translate.py
    run cp "$out/subwords/codes" "$out/data/codes"
}

# has_bfloat16: does what will train multiply bfloat16 in hardware? There it takes little more than half the time.
has_bfloat16() {
    if python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
        python -c 'import sys, torch; sys.exit(torch.cuda.get_device_capability() < (8, 0))'
    else
        grep -qwE 'avx512_bf16|amx_bf16' /proc/cpuinfo 2>/dev/null
    fi
}

step_train() {
    # The schedule of Eq. 3 with the warm-up and peak (1.1e-3) that suit so short a training; at twice this peak the decoder
    # never comes to use the source. Minutes are few epochs: without dropout they teach more. All else is the paper's recipe.
    local hours precision=()
    hours=$(python -c 'import sys; print(round(float(sys.argv[1]) / 60, 5))' "$minutes")
    ! has_bfloat16 || precision=(--bf16)
    run_readably fairseq-train "$out/data" --user-dir vaswani_plugin --task vaswani_translation --arch vaswani2017_tiny \
        --warmup-updates 300 --lr-factor 0.3 --dropout 0 --max-tokens 1536 ${precision[@]+"${precision[@]}"} \
        --stop-time-hours "$hours" --save-interval-updates 150 --keep-interval-updates 5 --no-epoch-checkpoints \
        --num-workers 0 --save-dir "$out/checkpoints" --log-format json --log-interval 20 --log-file "$out/train.log" \
        ${extra[@]+"${extra[@]}"}
    run python scripts/loss_curve.py "$out/train.log" "$out/loss.png"
}

step_average() {
    # The last three, that of the end included: a tenth of 15 minutes. The paper's last five are 7 % of its 12 hours
    # (Section 6.1); five of these would reach back to where the model was much worse.
    local checkpoints=() file
    while IFS= read -r file; do
        checkpoints+=("$file")
    done < <(find "$out/checkpoints" -name 'checkpoint_[0-9]*_[0-9]*.pt' | sort -V | tail -n 2)
    run python scripts/average_checkpoints.py ${checkpoints[@]+"${checkpoints[@]}"} "$out/checkpoints/checkpoint_last.pt" \
        --out "$out/averaged.pt"
}

step_translate() {
    rm -rf "$out/translation"
    # The task brings Section 6.1: beam of 4, length penalty 0.6, at most 50 tokens more than the source.
    run_readably fairseq-generate "$out/data" --user-dir vaswani_plugin --task vaswani_translation \
        --path "$out/averaged.pt" --gen-subset test --remove-bpe --batch-size 64 --num-workers 0 \
        --log-format simple --log-interval 1 --results-path "$out/translation"
    # fairseq translates sentences of similar length together; H-NUMBER puts them back into their order.
    local found=$out/translation/generate-test.txt tokenised=$out/translation/tokenised.$target
    printf "+ grep '^H-' %q | sort -t- -k2,2n | cut -f3 > %q\n" "$found" "$tokenised"
    grep '^H-' "$found" | sort -t- -k2,2n | cut -f3 >"$tokenised"
    run_io "$tokenised" "$out/translation/output.$target" sacremoses -l "$target" detokenize
}

step_report() {
    run python scripts/near_duplicates.py "$out/corpus/train.$source" "$out/corpus/test.$source" \
        --out "$out/translation/new-lines"
    run python scripts/quickstart_report.py "$out/corpus/test.$source" "$out/corpus/test.$target" \
        "$out/translation/output.$target" --new-lines "$out/translation/new-lines" \
        --manifest "$out/corpus/manifest.json" --out "$out/report.txt"
}

step corpus
read -r source target < <(python -c 'import json, sys
print(*json.load(open(sys.argv[1], encoding="utf-8"))["languages"].values())' "$out/corpus/manifest.json")
step tokenise
step subwords
step binarise
step train "$minutes minutes ${extra[*]-}"
step average
step translate
step report

echo "Loss curve: $out/loss.png   scores and examples: $out/report.txt   model: $out/averaged.pt"
