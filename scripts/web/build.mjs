// What pages run and how they look, as the package ships it: `make web`. The same bytes each time.
// d3's part is one file with its licences; our modules are one minified script for each kind of page.
import { build } from "esbuild";
import { createHash } from "crypto";
import { mkdirSync, readFileSync, readdirSync, writeFileSync } from "fs";
import { dirname, join } from "path";
import { fileURLToPath } from "url";

const [from, to] = process.argv.slice(2), here = dirname(fileURLToPath(import.meta.url));
const SCRIPTS = ["main", "results", "served", "open"], STYLES = ["style", "results", "served"];
const OURS = { bundle: true, minify: true, charset: "utf8", target: "es2022", legalComments: "none", write: false };
mkdirSync(to, { recursive: true });

const { metafile, outputFiles } = await build({
  absWorkingDir: here, entryPoints: ["d3.js"], bundle: true, minify: true, format: "iife", globalName: "d3",
  charset: "ascii", target: "es2020", legalComments: "none", write: false, metafile: true, outfile: "out.js",
});
const packages = new Set(
  Object.keys(metafile.inputs).map((path) => path.match(/node_modules\/([^/]+)/)?.[1]).filter(Boolean),
);
const notices = new Map();
for (const name of [...packages].sort()) {
  const { version } = JSON.parse(readFileSync(join(here, `node_modules/${name}/package.json`)));
  const text = readFileSync(join(here, `node_modules/${name}/LICENSE`), "utf8").trim();
  notices.set(text, [...(notices.get(text) ?? []), `${name} ${version}`]);
}
const banner = [...notices].map(([text, names]) => `/*! ${names.join(", ")}\n\n${text}\n*/\n`).join("");
writeFileSync(join(to, "d3.js"), banner.replace(/[^\x00-\x7f]/g, (c) => (c === "\u00a9" ? "(c)" : "?")) + outputFiles[0].text);

for (const [names, suffix] of [[SCRIPTS, "js"], [STYLES, "css"]]) {
  for (const name of names) {
    const made = await build({ ...OURS, entryPoints: [join(from, `${name}.${suffix}`)], format: suffix === "js" ? "iife" : undefined });
    writeFileSync(join(to, `${name}.${suffix}`), made.outputFiles[0].text);
  }
}

// What all of it was made of, by which a test sees without node that it is of today's sources.
const hash = createHash("sha256"), sources = readdirSync(from).filter((name) => /\.(js|css)$/.test(name)).sort();
const all = [...sources.map((name) => join(from, name)), ...["build.mjs", "d3.js", "package-lock.json"].map((name) => join(here, name))];
for (const path of all) hash.update(readFileSync(path)).update("\0");
writeFileSync(join(to, "sources.txt"), `${hash.digest("hex")}\n`);
