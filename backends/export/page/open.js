// Opens what the page holds compressed: what it is told, and two scripts, whose hashes are in its policy.
(async () => {
  const part = (id) => document.getElementById(id);
  if (!("DecompressionStream" in globalThis)) return part("old").removeAttribute("hidden");
  const opened = async (id) => {
    const packed = Uint8Array.from(atob(part(id).textContent.trim()), (c) => c.charCodeAt(0));
    return new Response(new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const [told, ...scripts] = await Promise.all(["data", "functions", "page"].map(opened));
  globalThis.llmirTold = JSON.parse(told);
  for (const source of scripts) {
    const script = document.createElement("script");
    script.textContent = source;
    document.head.append(script);
  }
})();
