"""Tables of the results of ``scripts/real_kernels``."""

import collections
import statistics

CLASSES = ("right", "constant", "parsed", "refused", "crashed", "wrong", "rough", "slow", "not called", "not imported")


def line_of(result):
    times = ""
    if "gradient_seconds" in result:
        times = f"{result['primal_seconds']:.1f} {result['gradient_seconds']:.1f} s"
    return " ".join(filter(None, [times, (result.get("message") or "")[:150]]))


def report(results):
    packages = collections.defaultdict(collections.Counter)
    for r in results:
        packages[r["package"]][r["class"]] += 1
    print(f"\n{'package':22}" + "".join(f"{name:>13}" for name in CLASSES))
    packages["all"] = sum(list(packages.values()), collections.Counter())
    for package, counts in packages.items():
        print(f"{package[:22]:22}" + "".join(f"{counts[name] or '':>13}" for name in CLASSES))
    counted = CLASSES[: CLASSES.index("not called")]
    called = sum(packages["all"][c] for c in counted)
    print(
        f"\n{called} kernels were called; right or constant: {packages['all']['right'] + packages['all']['constant']}"
    )
    report_times([r for r in results if r["class"] == "right"])
    messages = collections.Counter((r["class"], r.get("message", "")) for r in results
                                   if r["class"] in ("refused", "crashed"))  # fmt: skip
    for (kind, message), count in messages.most_common():
        print(f"{count:5} {kind:8} {message}")


def report_times(right):
    times = sorted(((r["gradient_seconds"] / max(r["primal_seconds"], 0.01), r) for r in right), key=lambda x: x[0])
    if times:
        mean = statistics.geometric_mean(ratio for ratio, _ in times)
        print(
            f"first gradient, compiled: {mean:.2f} times the first call of Numba's in the geometric mean, "
            f"{times[len(times) // 2][0]:.2f} in the median; most:"
        )
        for ratio, r in reversed(times[-5:]):
            print(f"{ratio:8.1f} {r['module']}.{r['function']} {line_of(r)}")
