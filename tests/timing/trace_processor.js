"use strict";
// Perfetto's trace processor, out of its web interface: requests come in on stdin, replies leave on stdout.
const { readFileSync, writeSync } = require("node:fs");
const { basename, join } = require("node:path");
const [, , folder] = process.argv;
const { stdin } = process;
const file = (url) => readFileSync(join(folder, basename(url)));
const port = { postMessage: (reply) => writeSync(1, reply) };
// What the program finds around it in a browser's worker.
class FromFolder {
  open(method, url) { this.url = url; }
  send() { this.response = file(this.url); }
}
Object.assign(globalThis, { self: globalThis, WorkerGlobalScope: Object, location: { href: "http://localhost/" } });
Object.assign(globalThis, { XMLHttpRequest: FromFolder, process: undefined });
console.log = console.warn = () => {};
(0, eval)(file("engine_bundle.js").toString());
globalThis.onmessage({ data: port });
setImmediate(() => stdin.on("data", (data) => port.onmessage({ data: new Uint8Array(data) })));
