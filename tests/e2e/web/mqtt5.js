// node mqtt5.js PACKAGE: MQTT.js at level 5, driven by lines of JSON on stdin and answering with
// lines of JSON. A line is [name of a client, what to do, arguments]; an answer is
// [name, "done" or "failed" or "message" or "closed", what came of it].

const readline = require("node:readline");
const mqtt = require(`${process.argv[2]}/node_modules/mqtt`);
const clients = {};

function tell(...answer) {
  const plain = (_key, value) =>
    value && value.type === "Buffer" ? Buffer.from(value.data).toString("latin1") : value;
  console.log(JSON.stringify(answer, plain));
}

function properties({ correlationData, ...others } = {}) {
  return correlationData === undefined
    ? others
    : { ...others, correlationData: Buffer.from(correlationData, "latin1") };
}

const does = {
  async connect(name, url, options) {
    const wanted = { protocolVersion: 5, reconnectPeriod: 0, ...options };
    const client = (clients[name] = mqtt.connect(url, wanted));
    client.on("message", (topic, payload, packet) =>
      tell(name, "message", {
        topic,
        payload,
        qos: packet.qos,
        retain: packet.retain,
        properties: packet.properties ?? {},
      }),
    );
    client.on("disconnect", (packet) => tell(name, "closed", packet.reasonCode));
    return new Promise((resolve, reject) => {
      client.once("connect", ({ sessionPresent }) => resolve(sessionPresent));
      client.once("error", reject);
    });
  },
  async subscribe(name, filter, options) {
    // Of a subscription that was refused the third argument has the reason code.
    return new Promise((resolve, reject) =>
      clients[name].subscribe(filter, options, (error, _granted, suback) =>
        suback ? resolve(suback.granted) : reject(error),
      ),
    );
  },
  async publish(name, topic, payload, { properties: given, ...options }) {
    const all = { ...options, properties: properties(given) };
    await clients[name].publishAsync(topic, payload, all);
  },
  async answer(name, filter) {
    // Publish what comes in capitals to its response topic.
    clients[name].on("message", (_topic, payload, { properties: asked }) =>
      clients[name].publish(asked.responseTopic, payload.toString().toUpperCase(), {
        qos: 1,
        properties: { correlationData: asked.correlationData },
      }),
    );
    await clients[name].subscribeAsync(filter, { qos: 1 });
  },
  async leave(name) {
    await clients[name].endAsync();
  },
  async vanish(name) {
    clients[name].stream.destroy();
  },
};

readline.createInterface({ input: process.stdin }).on("line", async (line) => {
  const [name, what, ...how] = JSON.parse(line);
  try {
    tell(name, "done", (await does[what](name, ...how)) ?? null);
  } catch (error) {
    tell(name, "failed", error.code ?? error.message);
  }
});
