// What a test has MQTT.js do, in node and on a page: messages of every QoS to itself, a large one
// at the end. Gives what came, in a form that survives JSON.

async function roundtrip(mqtt, url, options, count, large) {
  const client = await mqtt.connectAsync(url, {
    clean: true,
    connectTimeout: 10000,
    protocolVersion: 4,
    reconnectPeriod: 0,
    ...options,
  });
  const topic = `roundtrip/${options.clientId}`;
  const came = [];
  let enough;
  const all = new Promise((resolve) => (enough = resolve));
  client.on("message", (_topic, payload, packet) => {
    came.push([packet.qos, payload.length, payload.toString().slice(0, 10)]);
    if (came.length === 3 * count + 1) enough();
  });
  const granted = await client.subscribeAsync(`${topic}/#`, { qos: 2 });
  const sent = [];
  for (let number = 0; number < count; number++) {
    for (const qos of [0, 1, 2]) {
      sent.push(client.publishAsync(`${topic}/${qos}`, `${number}`, { qos }));
    }
  }
  await Promise.all(sent);
  await client.publishAsync(`${topic}/large`, "x".repeat(large), { qos: 1 });
  await all;
  await client.endAsync();
  return { granted: granted.map((grant) => grant.qos), came };
}

if (typeof module !== "undefined") module.exports = { roundtrip };
