// Parts of the page that are drawn from what they are given.

import { bytes, count, percent, time } from "/data.js";
import { clock, element } from "/charts.js";

const mibs = (bytesPerS) => (bytesPerS ? `${bytes(bytesPerS)}/s` : "0");

/** Columns of the disks: key, heading, how it is shown. */
export const COLUMNS = [
	["name", "Disk"],
	["weight", "Weight", (row) => String(row.weight)],
	["iops", "Requests/s", (row) => count(row.iops)],
	["read", "Read", (row) => mibs(row.read)],
	["written", "Written", (row) => mibs(row.written)],
	["p50", "p50", (row) => time(row.p50)],
	["p99", "p99", (row) => time(row.p99)],
	["share", "Device time", (row) => percent(row.share)],
	["waiting", "Waiting", (row) => String(row.waiting)],
	["why", "Why it waits", (row) => row.why],
];

/** Change a text only if it is another: whoever reads or selects it keeps the place. */
export function setText(node, text) {
	if (node.textContent !== text) node.textContent = text;
}

/** Name and value pairs. Nodes stay where they are. */
export function drawPairs(list, pairs) {
	while (list.children.length > pairs.length) list.lastElementChild.remove();
	pairs.forEach(([name, text, note], at) => {
		const box = list.children[at] ?? list.appendChild(element("div", {}, element("dt"), element("dd"), element("dd", { className: "note" })));
		setText(box.children[0], name);
		setText(box.children[1], text);
		setText(box.children[2], note ?? "");
		box.children[2].hidden = !note;
	});
}

/** What the processes of a guest read, as far as an agent tells them apart. */
export function drawProcesses(box, processes) {
	const told = processes.filter((process) => process.tag !== undefined);
	const text = JSON.stringify(told.map((p) => [p.tag, p.reads, p.hit_bytes]));
	if (box.dataset.text === text) return;
	box.dataset.text = text;
	if (told.length === 0) return box.replaceChildren();
	const row = (process) =>
		element(
			"tr",
			{},
			element("th", { scope: "row", textContent: `tag ${process.tag}` }),
			...[count(process.reads), bytes(process.read_bytes), percent(process.read_bytes ? process.hit_bytes / process.read_bytes : null)].map((t) =>
				element("td", { className: "number", textContent: t }),
			),
		);
	const heads = ["Process of the guest", "Reads", "Read", "From the cache"];
	box.replaceChildren(
		element(
			"table",
			{},
			element("thead", {}, element("tr", {}, ...heads.map((t, n) => element("th", { scope: "col", textContent: t, className: n ? "number" : "" })))),
			element("tbody", {}, ...told.slice(0, 12).map(row)),
		),
	);
}

/** A slow request, with a bar of where its time went. */
export function slowRow(request, now) {
	const parts = [
		["limits", request.limited_ms],
		["queue", request.queued_ms],
		["device", request.device_ms],
	];
	const bar = element("div", { className: "bar", "aria-hidden": "true" });
	for (const [name, ms] of parts) {
		const part = element("i", { className: name });
		part.style.flexGrow = String(ms);
		bar.append(part);
	}
	const cell = (text, isNumber = true) => element("td", { className: isNumber ? "number" : "", textContent: text });
	return element(
		"tr",
		{},
		cell(clock(now - request.ago_s), false),
		cell(request.disk, false),
		cell(request.ok ? request.op : `${request.op}, failed`, false),
		cell(request.op === "flush" ? "–" : bytes(request.offset_bytes)),
		cell(request.op === "flush" ? "–" : bytes(request.len_bytes)),
		cell(time(request.response_ms)),
		element("td", {}, bar),
		...parts.map(([, ms]) => cell(time(ms))),
	);
}

/** How long something lasts, in two units. */
export function lasting(seconds) {
	const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
	const at = parts.findIndex(([size]) => seconds >= size);
	if (at < 0) return "0 s";
	const [size, unit] = parts[at];
	const rest = parts[at + 1] ? Math.floor((seconds % size) / parts[at + 1][0]) : 0;
	return `${Math.floor(seconds / size)} ${unit}${rest ? ` ${rest} ${parts[at + 1][1]}` : ""}`;
}
