// A map of small objects, filled in order and read out of order.
//
//     node maps.js [ENTRIES]      about 220 bytes an entry; default 3 million, 620 MiB
const entries = Number(process.argv[2] ?? 3_000_000);
const map = new Map();
for (let i = 0; i < entries; i++)
  map.set("k" + i, { id: i, tags: [i % 97, i % 89] });
let sum = 0;
for (let i = 0; i < entries; i++) {
  const value = map.get("k" + ((i * 104729) % entries));
  sum = (sum * 31 + value.id + value.tags[1]) % 1000000007;
}
console.log(sum);
