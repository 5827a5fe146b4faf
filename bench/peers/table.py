"""From single measurements to one line a library and size. Pure; called by `run`.

A row is a measurement as `syncline perf --json` spells it, plus `library`, `round`,
`others_cores`, `steal_cores` and `pingpong_ns`.
"""

from statistics import median

OURS = "syncline"
QUIET_CORES = 0.15  # above it, a figure should be measured again
HEAD = ("collective", "ranks", "size", "library", "path", "median us", "of rounds", "p99 us",
        "GB/s", "ours/peer", "best", "load", "ping-pong", "wrong")
LEFT = {"collective", "library", "path", "of rounds", "ours/peer"}


def summarize(rows):
    """Medians over rounds, in the order in which rows first appear.

    `ratio` is ours over the peer's bandwidth, the median over the rounds that have both: above 1
    ours is faster. None where there is no such round. `ratio_best` sets the best rounds of both
    side by side: what is left when the rest of the machine disturbs most rounds.
    """
    groups = {}
    for row in rows:
        key = (row["collective"], row["ranks"], row["bytes"], row["library"])
        groups.setdefault(key, []).append(row)
    lines = []
    for (collective, ranks, size, library), group in groups.items():
        ours = groups.get((collective, ranks, size, OURS), [])
        ratios = [] if library == OURS else paired_ratios(ours, group)
        line = {name: median(row[name] for row in group)
                for name in ("p50_us", "p99_us", "min_us")}
        bus_factor = group[0]["busbw_gbps"] / group[0]["algbw_gbps"]
        algbw_gbps = size / line["p50_us"] / 1e3
        pingpong = [row["pingpong_ns"] for row in group if row["pingpong_ns"] is not None]
        line.update(
            collective=collective, ranks=ranks, bytes=size, library=library,
            path="; ".join(sorted({f"{row['transport']}/{row['algorithm']}" for row in group})),
            version=group[-1]["version"],
            rounds=len(group),
            p50_us_min=best(group),
            p50_us_max=max(row["p50_us"] for row in group),
            algbw_gbps=algbw_gbps,
            busbw_gbps=algbw_gbps * bus_factor,
            ratio=median(ratios) if ratios else None,
            ratio_min=min(ratios, default=None),
            ratio_max=max(ratios, default=None),
            ratio_best=best(group) / best(ours) if ratios else None,
            load_cores=median(row["others_cores"] + row["steal_cores"] for row in group),
            pingpong_ns=median(pingpong) if pingpong else None,
            wrong=sum(row["wrong"] for row in group),
        )
        lines.append(line)
    return lines


def best(rows):
    """The median time of the round that went best."""
    return min(row["p50_us"] for row in rows)


def paired_ratios(ours, peers):
    """Ours over the peer's bandwidth, round by round."""
    by_round = {row["round"]: row["p50_us"] for row in ours}
    return [row["p50_us"] / by_round[row["round"]] for row in peers if row["round"] in by_round]


def render(lines):
    """The table as text."""
    cells = [HEAD] + [_cells(line) for line in lines]
    widths = [max(len(row[at]) for row in cells) for at in range(len(HEAD))]
    text = []
    for number, row in enumerate(cells):
        if number > 0 and row[:3] != cells[number - 1][:3]:
            text.append("")
        aligned = (
            cell.ljust(width) if name in LEFT else cell.rjust(width)
            for name, cell, width in zip(HEAD, row, widths)
        )
        text.append("  ".join(aligned).rstrip())
    return "\n".join(text)


def size_text(count):
    """`64K`, `1M`; plain bytes where it is no whole number of those."""
    for shift, unit in ((30, "G"), (20, "M"), (10, "K")):
        if count >= 1 << shift and count % (1 << shift) == 0:
            return f"{count >> shift}{unit}"
    return str(count)


def _cells(line):
    ratio = ratio_best = "-"
    if line["ratio"] is not None:
        ratio = f"{line['ratio']:.2f} [{line['ratio_min']:.2f}-{line['ratio_max']:.2f}]"
        ratio_best = f"{line['ratio_best']:.2f}"
    pingpong = "-" if line["pingpong_ns"] is None else f"{line['pingpong_ns']:.0f} ns"
    busy = "*" if line["load_cores"] > QUIET_CORES else " "
    return (
        line["collective"], str(line["ranks"]), size_text(line["bytes"]), line["library"],
        line["path"], f"{line['p50_us']:.2f}",
        f"[{line['p50_us_min']:.2f}-{line['p50_us_max']:.2f}]", f"{line['p99_us']:.2f}",
        f"{line['algbw_gbps']:.3f}", ratio, ratio_best,
        f"{line['load_cores']:.2f}{busy}", pingpong, str(line["wrong"]),
    )
