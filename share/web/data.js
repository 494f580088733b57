// What the page knows: the daemon's last report and the samples of its history. No drawing here.

/** Ask the daemon; an answer that takes longer than this counts as none. */
const PATIENCE_MS = 8000;

/** Columns that have no value where there was no request. */
const QUANTILES = ["p50_ms", "p99_ms"];

export class Gone extends Error {}

/** GET some JSON. Throws `Gone` when the daemon does not answer. */
export async function get(path) {
	let answer;
	try {
		answer = await fetch(path, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MS) });
		if (answer.status === 503) throw new Gone("not ready");
		const json = await answer.json();
		if (!answer.ok) throw new Error(json.error ?? answer.statusText);
		return json;
	} catch (error) {
		if (answer?.ok === false && !(error instanceof Gone)) throw error;
		throw new Gone(error.message);
	}
}

/** POST a change. Returns what went wrong, or null. */
export async function change(word, body, token) {
	try {
		const answer = await fetch(`/api/${word}`, {
			method: "POST",
			headers: { "Content-Type": "application/json", Authorization: `Bearer ${token}` },
			body: JSON.stringify(body),
		});
		const json = await answer.json();
		if (answer.ok) return null;
		return answer.status === 401 ? "the token is not the right one" : json.error;
	} catch {
		return "the daemon does not answer";
	}
}

/** What happened on a device between two reports, with its disks by name. */
class DeviceSample {
	constructor(row, index, columns) {
		Object.assign(this, row);
		this.rows = row.disks ?? [];
		this.index = index;
		this.columns = columns;
		// Together, for shares.
		this.disksMs = 0;
		for (const disk of this.rows) if (disk) this.disksMs += disk[columns.device_time_ms];
	}

	/**
	 * A number of a disk; where nothing happened 0, or null for a response time, and undefined where
	 * there was no such disk.
	 */
	of(disk, column) {
		const at = this.index.get(disk);
		if (at === undefined) return undefined;
		const row = this.rows[at];
		if (row) return row[this.columns[column]];
		return QUANTILES.includes(column) ? null : 0;
	}
}

/** The samples of a history: the last minutes in seconds, or all since the start. */
export class Store {
	constructor() {
		this.forget();
	}

	forget() {
		this.process = null;
		this.recent = [];
		this.whole = [];
		this.of = null; // whose response times the samples have
		this.boot = Infinity; // when the daemon began, in seconds of Unix time
		this.wholeAt = 0;
	}

	/** Take a report in; says whether it is another daemon's. */
	take(status) {
		const { report } = status;
		const isOther = this.process !== null && this.process !== report.process;
		if (isOther) this.forget();
		this.process = report.process;
		// A report is up to a second old: the least is the nearest to the truth.
		this.boot = Math.min(this.boot, status.now_unix_s - report.uptime_s);
		this.status = status;
		return isOther;
	}

	/** Fetch what is new. `disk` is whose response times are wanted; null: all disks' together. */
	async follow(isWhole, disk) {
		const of = disk ? `&disk=${encodeURIComponent(disk)}` : "";
		if (this.of !== disk) {
			await this.refetchResponses(of);
			this.of = disk;
		}
		const since = this.recent.at(-1)?.until ?? 0;
		this.append(this.recent, await get(`/api/history?since=${since}${of}`));
		while (this.recent.length > 600) this.recent.shift();
		const step = this.whole.length > 1 ? this.whole[0].until - this.whole[0].since : 1;
		if (isWhole && performance.now() - this.wholeAt > 1000 * Math.max(5, step)) {
			this.whole = [];
			this.append(this.whole, await get(`/api/history?whole=1${of}`));
			this.wholeAt = performance.now();
		}
	}

	/** Another disk's response times for the samples that are there. */
	async refetchResponses(of) {
		this.wholeAt = 0;
		if (this.recent.length === 0) return;
		const answer = await get(`/api/history?brief=1${of}`);
		if (answer.process !== this.process) return;
		const byTime = new Map(answer.samples.map((sample) => [sample.until_s, sample]));
		for (const sample of this.recent) {
			const found = byTime.get(sample.until);
			answer.devices.forEach((names, at) => {
				const device = sample.devices.get(names.name);
				if (device) device.responses = found?.devices[at]?.responses ?? [];
			});
		}
	}

	append(list, answer) {
		if (answer.process !== this.process) return;
		const columns = Object.fromEntries(answer.columns.map((name, at) => [name, at]));
		const indices = answer.devices.map((d) => new Map(d.disks.map((name, at) => [name, at])));
		for (const sample of answer.samples) {
			const devices = new Map();
			sample.devices.forEach((row, at) => {
				if (row) devices.set(answer.devices[at].name, new DeviceSample(row, indices[at], columns));
			});
			list.push({ since: sample.since_s, until: sample.until_s, devices });
		}
	}

	/** The samples of a range in seconds, or of `"whole"`, and from when until when they are. */
	view(range) {
		const list = range === "whole" ? this.joined() : this.recent;
		const end = list.at(-1)?.until ?? 0;
		const start = range === "whole" ? 0 : end - range;
		const samples = list.filter((sample) => sample.until > start);
		// A history that has only begun does not hide in a corner.
		const from = Math.min(Math.max(start, samples[0]?.since ?? 0), end - 60);
		return { samples, from: this.boot + from, until: this.boot + end, boot: this.boot };
	}

	/** All since the start, with the seconds that have come since it was asked for. */
	joined() {
		const end = this.whole.at(-1)?.until ?? 0;
		return [...this.whole, ...this.recent.filter((sample) => sample.since >= end)];
	}
}

/** A time in a few letters. */
export function time(ms) {
	if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
	// What would be written as 1000 ms is a second.
	if (ms >= 999.5) return `${digits(ms / 1000)} s`;
	if (ms >= 0.9995) return `${digits(ms)} ms`;
	return ms === 0 ? "0" : `${digits(ms * 1000)} µs`;
}

export function bytes(count) {
	const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
	let at = 0;
	while (count >= 1024 && at < units.length - 1) {
		count /= 1024;
		at += 1;
	}
	return `${digits(count)} ${units[at]}`;
}

export function count(number) {
	if (number >= 1e6) return `${digits(number / 1e6)} M`;
	if (number >= 1e4) return `${digits(number / 1e3)} k`;
	return digits(number);
}

export function percent(share) {
	if (share === null || share === undefined || Number.isNaN(share)) return "–";
	return `${digits(100 * share)} %`;
}

/** Three digits that count, no more than that. */
function digits(number) {
	if (number === 0) return "0";
	const size = Math.abs(number);
	if (size >= 100) return number.toFixed(0);
	return String(Number(number.toPrecision(size >= 10 ? 3 : 2)));
}
