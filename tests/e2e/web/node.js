// node node.js PACKAGE JOBS: runs MQTT.js, from the folder PACKAGE, once for each of the jobs
// (JSON: url, clientId, ca, count, large) and prints what came.

const fs = require("node:fs");
const { roundtrip } = require("./roundtrip.js");

async function main([, , folder, jobs]) {
  const mqtt = require(`${folder}/node_modules/mqtt`);
  const results = [];
  for (const { url, clientId, ca, count, large } of JSON.parse(jobs)) {
    const options = { clientId, ...(ca && { ca: fs.readFileSync(ca) }) };
    results.push(await roundtrip(mqtt, url, options, count, large));
  }
  console.log(JSON.stringify(results));
}

main(process.argv).catch((error) => {
  console.error(error);
  process.exit(1);
});
