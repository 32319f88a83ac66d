"""Predicted against published figures of whole models, by row: `make accuracy`, `make accuracy-...`.

    python -m tools.compare throughput [WORD]    # training programs on stock torch (make accuracy)
    python -m tools.compare plans [WORD]         # plans of them: batches that fit, the ranking of GPUs
    python -m tools.compare transformers         # FP32 transformers that NeuSight timed
    python -m tools.compare languages            # llm-foundry's trainings of MPT on A100 and H100
    python -m tools.compare clusters [--most 20]  # MPT and GPT on 2 to 512 GPUs (make accuracy-clusters)
    python -m tools.compare images [--most 100] [--unseen]    # timm (make accuracy-images)
    python -m tools.compare compiled [--most 10]              # timm, compiled (make accuracy-compiled)
    python -m tools.compare custom_kernels [WORD]  # LeetCUDA's kernels in CUDA C++ (make accuracy-cuda-kernels)

WORD chooses the models whose names begin so. Each program runs without data on an emulated GPU and reads its own clock,
as a person's program does. For each group of rows: the median and the 90th percentile of the error, the bias (of times:
+ is too slow), Kendall's tau of the ranking, and how many rows lay inside the printed band. Of compiled models, those
that were recorded are priced from their recordings, fitted ones and those that a seed held out; others run, eagerly and
compiled: so many of timm's results (`--most`), or with `--dashboard` the training steps on an A100 that TorchInductor's
dashboard reported, of which excerpts sorted by speed-up were published.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median

from tools.calibration import calibrate_bands, calibrate_compiled, calibrate_sustained
from tools.calibration.calibrate_cost import is_fitted
from tools.corpus import recordings
from tools.corpus.outcomes import Outcome, error_figures, errors_of, ranking, show, summarize, tau
from tools.docs import figures
from windtunnel import gpus
from windtunnel.cost.sustained import limit_of

UNPUBLISHED = (("gpt2-124M", "A100-SXM4-40GB", "bf16", 12), ("gpt2-124M", "RTX3090", "bf16", 8))
"""Programs without a published figure in the table: what they would reach."""


def throughput(options: argparse.Namespace) -> None:
    """The training programs, and a textbook's GPT-2 in stages; `calibrate_cost` says what was fitted on which rows."""
    from tools.corpus import training

    groups: dict[str, list[Outcome]] = defaultdict(list)
    pairs: list[tuple[float, float, str, bool]] = []
    for one, family, group in (*programs(options.only), *stages(options.only)):
        for name in ("all", group, f"{group}, {family}"):
            groups[name].append(one)
        if family != "GPT-2 in stages":
            pairs.append((one.predicted, one.published, one.model, group == "old software"))
    for name, some in sorted(groups.items()):
        print(f"{name}: {errors_of(some)}, {sum(one.inside for one in some) / len(some):.0%} inside")
    for model, gpu, kind, batch in UNPUBLISHED if not options.only else ():
        reached = training.run(model, gpu, kind, batch).throughput
        print(f"{model:21} {gpu:15} {kind} batch {batch:>5}: {reached:10.1f}, no published figure")
    same = [pair for pair in pairs if not pair[3]]
    for words, some_pairs in (("all rows", pairs), ("rows of one software", same)):
        if len(some_pairs) > 1:
            order = tau(pair[:3] for pair in some_pairs)
            print(f"Kendall's tau of the ranking within each model, {words}: {order:.3f}")


def line(name: str, gpu: str, kind: str, batch: int, one: Outcome, group: str) -> None:
    """The line of a row of throughput, in samples or tokens a second."""
    print(
        f"{name:21} {gpu:15} {kind:4} batch {batch:>5}: {one.predicted:10.1f} of {one.published:10.1f} "
        f"{one.ratio - 1:+7.1%}  band {one.band or 0:.0%}, {group}",
        flush=True,
    )


def programs(only: str) -> Iterator[tuple[Outcome, str, str]]:
    """Each training program: what it reaches, its family, and whether anything was fitted on it."""
    from tools.corpus import training

    rows = [row for row in training.rows() if row.model.startswith(only)]
    for row in sorted(rows, key=lambda row: (row.model, row.gpu, row.kind)):
        predicted, band = training.predict(row)
        one = Outcome(row.model, row.group, predicted, row.published, band, is_rate=True)
        fitted = is_fitted(row.model, row.gpu, row.kind)
        group = "fitted" if fitted else "old software" if row.is_old else "unseen"
        line(row.model, row.gpu, row.kind, row.batch, one, group)
        yield one, "Transformer-XL" if row.model.startswith("transformer-xl") else "ResNet-50 and BERT", group


def stages(only: str) -> Iterator[tuple[Outcome, str, str]]:
    """GPT-2 in the stages of a textbook."""
    from tools.corpus import textbook as of

    for row in of.rows() if "gpt2".startswith(only) else ():
        predicted, band = of.predict(row["stage"], int(row["batch"]))
        one = Outcome("gpt2", row["stage"], predicted, float(row["value"]), band, is_rate=True)
        line(f"gpt2, {row['stage']}", of.GPU, "", int(row["batch"]), one, "unseen")
        yield one, "GPT-2 in stages", "unseen"


def plans(options: argparse.Namespace) -> None:
    """Plans of the training programs."""
    from tools.corpus.plans import compare

    compare(options.only)


def transformers(options: argparse.Namespace) -> None:
    """NeuSight's whole models."""
    from tools.corpus import transformers as of

    found = []
    for row in of.rows():
        if row.model.startswith(options.only):
            step = of.run(row)
            found.append(show(Outcome(row.model, row.group, step.ms, row.ms, step.band)))
    summarize(found)
    record(options, {"transformers": found})


def record(options: argparse.Namespace, rows: dict[str, list[Outcome]], name: str = "models") -> None:
    """Write rows of `docs/figures/NAME.json`, and with those of whole models how well they are ranked."""
    if options.record:
        figures.record(name, {row: error_figures(some) for row, some in rows.items()})
        if name == "models":
            ranked = figures.load("models-tau")["rows"]
            figures.record("models-tau", {row: ranking(some) for row, some in rows.items() if row in ranked})


def languages(options: argparse.Namespace) -> None:
    """llm-foundry's trainings from their recordings: with PyTorch's attention, and with that of the runs.

    `calibrate_sustained` says what was fitted on them.
    """
    slower = calibrate_sustained.attention()
    found = []
    for row in recordings.read(recordings.LANGUAGES):
        if row.model.startswith(options.only):
            band = calibrate_bands.band_of(row, limit_of(gpus.find(row.gpu).generation))
            for name, factor in (("PyTorch's attention", 1.0), ("as published", slower)):
                group = f"{row.gpu}, {name}"
                ms = row.predicted_ns(factor) / 1e6
                found.append(Outcome(row.model, group, ms, row.ms, band))
                show(found[-1]._replace(group=f"{group[:8]} {row.group}"))
    summarize(found)
    stock = [one for one in found if one.group.endswith("PyTorch's attention")]
    rows = {f"{card}-stock": [one for one in stock if one.group.startswith(card.upper())] for card in ("a100", "h100")}
    record(options, rows, "sustained")


def clusters(options: argparse.Namespace) -> None:
    """Trainings on 2 to 512 GPUs, each as a cluster that few processes play."""
    from tools.corpus import clusters as of

    rows = [row for row in of.rows() if row.model.startswith(options.only) and row.stages <= of.MOST_STAGES]
    found = []
    for row, one in of.predicted(rows[: options.most]):
        show(one._replace(group=f"{row.cluster} {row.layout}"))
        found.append((row, one))
    summarize(one for _, one in found)
    of.summarize(found)
    if options.record:
        figures.record("cluster-trainings", of.figures_of(found))


def images(options: argparse.Namespace) -> None:
    """timm's results, in an order that a seed gives: of those that shares were fitted on, or of the others."""
    from tools.corpus import images as of

    timm = of.import_timm()
    fitted = {(one.model, one.group) for one in recordings.read(recordings.EAGER_STEPS)}
    rows = [row for row in of.in_order() if row.model.startswith(options.only)]
    rows = [row for row in rows if options.unseen != ((row.model, row.group) in fitted)]
    rows = [row for row in rows if not row.model.startswith(tuple(options.without))]
    found = []
    for row in rows[: options.most or 60]:
        try:
            step = of.run(timm, row)
        except RuntimeError as error:
            print(f"{row.model:32} {row.group:24} left out: {of.why(error)}")
            continue
        found.append(show(Outcome(row.model, row.group, step.ms, row.ms, step.band)))
    summarize(found)
    layouts(found)
    record(options, {"unseen": found} if options.unseen else {})


def compiled(options: argparse.Namespace) -> None:
    """timm's compiled results: recorded ones, fitted and held out, from their recordings, and others."""
    if options.dashboard:
        summarize(dashboard(options.only))
        return
    found = []
    known = set()
    for name in ("fitted", calibrate_compiled.HELD_OUT):
        pairs = calibrate_compiled.pairs(held_out=name != "fitted")
        known |= {(one.model, one.cuda) for one in pairs.compiled}
        for kind, some in (("eager", pairs.eager), ("compiled", pairs.compiled)):
            for one, ms in zip(some, calibrate_compiled.step_ms(some).tolist(), strict=True):
                found.append(show(Outcome(one.model, f"{name} {kind}", ms, one.ms, calibrate_bands.band_of(one))))
    found += unseen(options.only, 10 if options.most is None else options.most, known)
    summarize([*found, *speedups(found)])
    calibrate_compiled.show_limits()
    held = [one for one in found if one.group == f"{calibrate_compiled.HELD_OUT} compiled"]
    faster = [one for one in speedups(found) if one.group == f"{calibrate_compiled.HELD_OUT} speed-up"]
    record(options, {"compiled-held": held, "speedup-held": faster})


def unseen(only: str, most: int, known: set[tuple[str, tuple[int, int]]]) -> list[Outcome]:
    """Rows of timm's compiled results that are not `known`, in an order that a seed gives."""
    if not most:
        return []
    from tools.corpus import compiled as of
    from tools.corpus.images import import_timm

    timm = import_timm()
    found: list[Outcome] = []
    for row in of.chosen(len(of.rows())):
        major, _, minor = row.cuda.partition(".")
        if (row.model, (int(major), int(minor))) in known or not row.model.startswith(only):
            continue
        try:
            eager, both = of.run(timm, row)
        except RuntimeError as error:
            print(f"{row.model:32} left out: {of.why(error)[:120]}")
            continue
        for kind, step, images_per_s in (("eager", eager, row.eager), ("compiled", both, row.compiled)):
            published = 1000.0 * row.batch / images_per_s
            found.append(show(Outcome(row.model, f"unseen {kind}", step.ms, published, both.band)))
        if len(found) >= 2 * most:
            break
    return found


def speedups(outcomes: list[Outcome]) -> list[Outcome]:
    """Of models that ran both ways, eager over compiled time."""
    eager = {(one.model, one.group.removesuffix(" eager")): one for one in outcomes if one.group.endswith(" eager")}
    found = []
    for one in outcomes:
        set_name, _, kind = one.group.rpartition(" ")
        if kind == "compiled":
            other = eager[one.model, set_name]
            predicted, published = other.predicted / one.predicted, other.published / one.published
            found.append(Outcome(one.model, f"{set_name} speed-up", predicted, published, None))
    return found


def dashboard(only: str) -> list[Outcome]:
    """Speed-ups of training steps that TorchInductor's dashboard reported of an A100."""
    from tools.corpus import compiled as of
    from tools.corpus.images import import_timm

    timm = import_timm()
    found = []
    for row in of.dashboard_rows():
        if row.model.startswith(only):
            predicted = of.train(timm, row)
            found.append(Outcome(row.model, f"dashboard {row.kind}", predicted, row.speedup, None))
            print(f"{row.model:32} {row.kind:24} {predicted:.2f} of {row.speedup:.2f}", flush=True)
    return found


def layouts(outcomes: list[Outcome]) -> None:
    """Of models that were measured in both layouts, how many the prediction ranks rightly."""
    times = {(one.model, one.group): one for one in outcomes}
    right = total = 0
    for (model, group), one in times.items():
        other = times.get((model, group.replace("nchw", "nhwc")))
        if group.endswith("nchw") and other is not None and abs(one.published / other.published - 1.0) > 0.02:
            total += 1
            right += (one.predicted > other.predicted) == (one.published > other.published)
    if total:
        print(f"layouts: {right} of {total} models ranked rightly (those that differ by more than 2 %)")


def custom_kernels(options: argparse.Namespace) -> None:
    """LeetCUDA's kernels on an L20, in a loop that the host or the device bounds; WORD chooses folders."""
    from tools.corpus import custom_kernels as of

    groups: dict[str, list[Outcome]] = defaultdict(list)
    for call in of.calls():
        if call.kind.startswith(options.only):
            one = of.outcome(call)
            if options.verbose:
                print(f"{call.kind:12} {call.shape:24} {call.label:40} {one.predicted:9.4f} of {call.ms:9.4f} ms "
                      f"{one.ratio - 1:+7.0%}, band {one.band:.0%}")  # fmt: skip
            for name in ("all", "fitted" if of.is_fitted(call.kind) else "left-out", call.kind):
                groups[name].append(one)
    rows = {name: of.figures_of(some) for name, some in groups.items()}
    for name, row in rows.items():
        bias = median(one.ratio for one in groups[name])
        print(f"{name:12} {row['number']:4} rows, median factor {row['factor']:.2f}, within 30 % {row['near']:3} %, "
              f"within 2.5 times {row['far']:3} %, inside the band {row['inside']:3} %, predicted over published "
              f"{bias:.2f}")  # fmt: skip
    if options.record:
        figures.record("custom-kernels", rows)


CORPORA: dict[str, Callable[[argparse.Namespace], None]] = {
    one.__name__: one
    for one in (throughput, plans, transformers, languages, clusters, images, compiled, custom_kernels)
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", choices=CORPORA)
    parser.add_argument("word", nargs="?", default="", help="models whose names begin so")
    parser.add_argument("--only", default="", help="the same")
    parser.add_argument("--most", type=int, help="how many rows of images (60), or of compiled models to run (10)")
    parser.add_argument("--dashboard", action="store_true", help="of compiled models, the dashboard's training steps")
    parser.add_argument("--unseen", action="store_true", help="rows of images that nothing was fitted on")
    parser.add_argument("--verbose", action="store_true", help="a line for each row of custom_kernels")
    parser.add_argument("--record", action="store_true", help="write the figures of the documentation")
    parser.add_argument("--without", action="append", default=[], help="leave out images' models whose names begin so")
    options = parser.parse_args()
    options.only = options.only or options.word
    if options.record and (options.only or options.without or options.dashboard):
        parser.error("figures are of all rows: --record goes with no choice of models")
    CORPORA[options.corpus](options)


if __name__ == "__main__":
    main()
