// Which charts there are, and what each shows.

import { Heat, Lines, diskColour, formats } from "/charts.js";

const { bytes, count, percent, time } = formats;

/** Class c of response times is from 2^(c/4) µs on. */
const fromMs = (number) => 2 ** (number / 4) / 1000;
const classOf = (ms) => 4 * Math.log2(ms * 1000);
const REGIONS = 64;
/** Disks with a colour of their own; the others are one. */
export const SHOWN = 8;

const seconds = (sample) => Math.max(sample.until - sample.since, 1e-3);

/** A value for each sample, of the device that is shown. */
const along = (model, value) =>
	model.view.samples.map((sample) => {
		const device = sample.devices.get(model.device);
		return device ? value(device, sample) : null;
	});

/** A line for each disk that is shown; the selected one is thicker. */
const perDisk = (model, value) =>
	model.shown.map((name, n) => ({
		name,
		colour: diskColour(n),
		width: name === model.disk ? 3 : 1.25,
		values: along(model, (device, sample) => value(device, sample, name) ?? null),
	}));

const share = {
	id: "chart-share",
	title: "Who had the device",
	text: "Share of the time that all disks together had on the device.",
	isStack: true,
	top: 1,
	format: percent,
	none: "No disk had the device in this time.",
	series(model) {
		const part = (device, ms) => (device.disksMs > 0 ? ms / device.disksMs : null);
		const lines = perDisk(model, (device, sample, disk) => part(device, device.of(disk, "device_time_ms") ?? 0));
		if (model.rest > 0) {
			const shownMs = (device) =>
				model.shown.reduce((sum, disk) => sum + (device.of(disk, "device_time_ms") ?? 0), 0);
			lines.push({
				name: `${model.rest} others`,
				colour: diskColour(-1),
				values: along(model, (device) => part(device, Math.max(0, device.disksMs - shownMs(device)))),
			});
		}
		return lines.map((line) => ({ ...line, width: 0 }));
	},
};

const busy = {
	id: "chart-busy",
	title: "What the device did",
	text: "Time busy with reads and writes, and time in which the policy left it idle on purpose.",
	top: 1,
	format: percent,
	series(model) {
		const of = (ms, sample) => Math.min(1, ms / 1000 / seconds(sample));
		const held = (device) => Object.values(device.held_ms).reduce((sum, ms) => sum + ms, 0);
		return [
			{ name: "busy", colour: diskColour(0), width: 2, values: along(model, (d, s) => of(d.service_ms, s)) },
			{ name: "withheld by the policy", colour: diskColour(1), dash: [4, 4], values: along(model, (d, s) => of(held(d), s)) },
		];
	},
};

const requests = {
	id: "chart-iops",
	title: "Requests per second",
	text: "Reads and writes that were completed, by disk.",
	format: (value) => (value === null ? "–" : count(value)),
	series: (model) =>
		perDisk(model, (device, sample, disk) => {
			const reads = device.of(disk, "reads");
			return reads === undefined ? null : (reads + device.of(disk, "writes")) / seconds(sample);
		}),
};

const bandwidth = {
	id: "chart-bandwidth",
	title: "Bandwidth",
	text: "Bytes read and written per second, by disk.",
	axisSize: 78,
	isBinary: true,
	format: (value) => (value === null ? "–" : `${bytes(value)}/s`),
	series: (model) =>
		perDisk(model, (device, sample, disk) => {
			const read = device.of(disk, "read_bytes");
			return read === undefined ? null : (read + device.of(disk, "written_bytes")) / seconds(sample);
		}),
};

const latency = {
	id: "chart-latency",
	title: "Response time",
	text: "99 of 100 requests were faster (p99), by disk; dashed: half of the selected disk’s (p50).",
	isLog: true,
	format: time,
	series(model) {
		const lines = perDisk(model, (device, sample, disk) => device.of(disk, "p99_ms"));
		if (model.disk) {
			const n = model.shown.indexOf(model.disk);
			lines.push({
				name: `${model.disk} p50`,
				colour: diskColour(n),
				dash: [6, 4],
				width: 1.5,
				values: along(model, (device) => device.of(model.disk, "p50_ms") ?? null),
			});
		}
		return lines;
	},
};

const cache = {
	id: "chart-cache",
	title: "Cache and read-ahead",
	text: "Of what the selected disk read: found in the cache. Of what was read ahead: read by the guest.",
	top: 1,
	format: percent,
	series(model) {
		// Data is read some time after it was fetched: compare them over some samples.
		const window = 10;
		const sums = (column) => {
			const values = along(model, (device) => device.of(model.disk, column) ?? 0);
			return values.map((_, at) => values.slice(Math.max(0, at - window + 1), at + 1).reduce((a, b) => a + (b ?? 0), 0));
		};
		const over = (part, all) => part.map((value, at) => (all[at] > 0 ? Math.min(1, value / all[at]) : null));
		return [
			{ name: "found in the cache", colour: diskColour(0), width: 2, values: over(sums("hit_bytes"), sums("read_bytes")) },
			{ name: "read ahead and used", colour: diskColour(2), width: 2, dash: [6, 3], values: over(sums("used_bytes"), sums("prefetched_bytes")) },
		];
	},
};

/** Counts of the range by row, for tables. */
function totals(model, of) {
	const sums = new Map();
	for (const sample of model.view.samples) {
		const device = sample.devices.get(model.device);
		for (const [row, number] of device ? of(device) : []) sums.set(row, (sums.get(row) ?? 0) + number);
	}
	return [...sums].sort((a, b) => a[0] - b[0]);
}

/** The highest count in one cell, for shades. */
function highest(model, of) {
	let most = 1;
	for (const sample of model.view.samples) {
		const device = sample.devices.get(model.device);
		for (const [, number] of device ? of(device) : []) most = Math.max(most, number / seconds(sample));
	}
	return most;
}

/** Shade of a count: by orders of magnitude, and what there is at all can be seen. */
const byCount = (most) => (number, sample) => 0.12 + 0.88 * Math.min(1, Math.log1p(number / seconds(sample)) / Math.log1p(most));

const responses = {
	id: "chart-responses",
	title: "Response times",
	text: "How many requests took how long.",
	scale: ["few requests", "many"],
	rows(model) {
		const found = totals(model, (device) => device.responses);
		const [low, high] = found.length ? [found[0][0], found.at(-1)[0]] : [26, 40];
		// Some room around, and not less than three decades would show.
		const first = Math.max(0, low - 2);
		this.shade = (value, _, sample) => byCount(this.most)(value, sample);
		this.most = highest(model, (device) => device.responses);
		return { first, count: Math.max(high + 3, first + 24) - first };
	},
	cells: (model, sample) => sample.devices.get(model.device)?.responses ?? [],
	splits(min, max) {
		const all = [];
		for (let power = -3; power < 7; power++) all.push(classOf(10 ** power));
		return all.filter((at) => at >= min && at <= max);
	},
	label: (at) => time(fromMs(at)),
	name: (row) => `${time(fromMs(row))} to ${time(fromMs(row + 1))}`,
	format: (number) => `${count(number)} requests`,
	tell(model) {
		const found = totals(model, (device) => device.responses);
		const all = found.reduce((sum, [, number]) => sum + number, 0);
		if (all === 0) return `${model.heatOf}: no requests in this time.`;
		const upTo = (part) => {
			let seen = 0;
			for (const [row, number] of found) if ((seen += number) >= part * all) return time(fromMs(row + 1));
			return "";
		};
		return `${model.heatOf}: ${count(all)} requests, half below ${upTo(0.5)}, 99 of 100 below ${upTo(0.99)}.`;
	},
	list(model) {
		const found = totals(model, (device) => device.responses);
		const all = found.reduce((sum, [, number]) => sum + number, 0);
		return [["took", "requests", "share"], ...found.map(([row, n]) => [this.name(row), count(n), percent(n / all)])];
	},
};

const slowest = {
	id: "chart-disks",
	title: "Response time of each disk",
	text: "p99 of each disk in each moment; the selected one is marked.",
	scale: ["100 µs", "1 s and more"],
	isDown: true,
	axisSize: 96,
	tall: (rows) => Math.min(520, Math.max(126, rows * (rows > 40 ? 6 : rows > 20 ? 10 : 16))),
	/** Many disks: the whole width, above the other charts. */
	isWide: (model) => model.disks.length > 10,
	rows: (model) => ({ first: 0, count: model.disks.length }),
	*cells(model, sample) {
		const device = sample.devices.get(model.device);
		if (!device) return;
		for (let row = 0; row < model.disks.length; row++) {
			const ms = device.of(model.disks[row], "p99_ms");
			if (ms !== null && ms !== undefined) yield [row, ms];
		}
	},
	shade: (ms) => Math.min(1, Math.max(0.04, Math.log10(ms / 0.1) / 4)),
	splits(min, max, u) {
		// As many names as there is room for, the selected one always.
		const room = Math.max(1, Math.floor(u.over.clientHeight / 14));
		const step = Math.ceil(this.model.disks.length / room);
		const selected = this.model.disks.indexOf(this.model.disk);
		const rows = this.model.disks.map((_, row) => row);
		const near = (row) => row !== selected && Math.abs(row - selected) < step;
		return rows.filter((row) => row === selected || (row % step === 0 && !near(row))).map((row) => row + 0.5);
	},
	label(at) {
		const name = this.model.disks[Math.floor(at)] ?? "";
		return name.length > 13 ? `${name.slice(0, 12)}…` : name;
	},
	name(row) {
		return this.model.disks[row] ?? "no disk";
	},
	format: (ms) => `p99 ${time(ms)}`,
	mark(u) {
		const row = this.model.disks.indexOf(this.model.disk);
		if (row < 0 || this.model.disks.length < 2) return;
		const y = [row, row + 1].map((at) => u.valToPos(at, "y", true));
		u.ctx.save();
		u.ctx.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--focus");
		u.ctx.lineWidth = 2;
		u.ctx.strokeRect(u.bbox.left + 1, y[0], u.bbox.width - 2, Math.max(3, y[1] - y[0]));
		u.ctx.restore();
	},
	tell(model) {
		const last = model.view.samples.at(-1);
		const now = last ? [...this.cells(model, last)].sort((a, b) => b[1] - a[1])[0] : undefined;
		return now ? `Slowest now: ${model.disks[now[0]]}, ${this.format(now[1])}.` : "No requests now.";
	},
	list(model) {
		const worst = new Map();
		const last = new Map();
		for (const sample of model.view.samples) {
			last.clear();
			for (const [row, ms] of this.cells(model, sample)) {
				worst.set(row, Math.max(ms, worst.get(row) ?? 0));
				last.set(row, ms);
			}
		}
		return [["disk", "p99 now", "highest p99"], ...model.disks.map((disk, row) => [disk, time(last.get(row)), time(worst.get(row))])];
	},
};

/** Digits behind the point of a place on the device: as many as it needs. */
const digitsOf = (at) => (Number.isInteger((100 * at) / REGIONS) ? 0 : 1);

const head = {
	id: "chart-head",
	title: "Where the head goes",
	text: "Where on the device its commands begin, from its start (0 %) to its end.",
	scale: ["few commands", "many"],
	rows(model) {
		this.most = highest(model, (device) => device.regions);
		this.shade = (value, _, sample) => byCount(this.most)(value, sample);
		// The part that is used: small images on a large device are in a small part of it.
		const found = totals(model, (device) => device.regions).map(([row]) => row);
		const [low, high] = [Math.min(...found, REGIONS - 1), Math.max(...found, 0)];
		if (low > high || high - low > REGIONS / 2) return { first: 0, count: REGIONS };
		const size = 2 ** Math.max(2, Math.ceil(Math.log2(high - low + 3)));
		const first = Math.min(Math.max(0, Math.floor((low + high + 1 - size) / 2)), REGIONS - size);
		return { first, count: size };
	},
	cells: (model, sample) => sample.devices.get(model.device)?.regions ?? [],
	splits: (min, max) => [0, 1, 2, 3, 4].map((n) => min + (n * (max - min)) / 4),
	label: (at) => `${Number(((100 * at) / REGIONS).toFixed(digitsOf(at)))} %`,
	name: (row) => `${((100 * row) / REGIONS).toFixed(1)} to ${((100 * (row + 1)) / REGIONS).toFixed(1)} %`,
	format: (number) => `${count(number)} commands`,
	tell(model) {
		const found = totals(model, (device) => device.regions).sort((a, b) => b[1] - a[1]);
		return found.length ? `Most commands at ${this.name(found[0][0])} of the device.` : "No commands in this time.";
	},
	list(model) {
		const found = totals(model, (device) => device.regions);
		const all = found.reduce((sum, [, number]) => sum + number, 0);
		return [["of the device", "commands", "share"], ...found.map(([row, n]) => [this.name(row), count(n), percent(n / all)])];
	},
};

/** All charts, in the order of the page. */
export function charts() {
	return [
		new Lines(share),
		new Heat(responses),
		new Lines(latency),
		new Heat(slowest),
		new Lines(requests),
		new Lines(bandwidth),
		new Heat(head),
		new Lines(cache),
		new Lines(busy),
	];
}
