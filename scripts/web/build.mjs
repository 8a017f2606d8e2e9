// What the page has of d3, as one file with its licences: `make web`. The same bytes each time.
import { build } from "esbuild";
import { readFileSync, writeFileSync } from "fs";

const [out] = process.argv.slice(2);
const { metafile, outputFiles } = await build({
  entryPoints: ["d3.js"], bundle: true, minify: true, format: "iife", globalName: "d3", charset: "ascii",
  target: "es2020", legalComments: "none", write: false, metafile: true, outfile: out,
});
const packages = new Set(
  Object.keys(metafile.inputs).map((path) => path.match(/node_modules\/([^/]+)/)?.[1]).filter(Boolean),
);
const notices = new Map();
for (const name of [...packages].sort()) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`));
  const text = readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
  notices.set(text, [...(notices.get(text) ?? []), `${name} ${version}`]);
}
const banner = [...notices].map(([text, names]) => `/*! ${names.join(", ")}\n\n${text}\n*/\n`).join("");
writeFileSync(out, banner.replace(/[^\x00-\x7f]/g, (c) => (c === "\u00a9" ? "(c)" : "?")) + outputFiles[0].text);
