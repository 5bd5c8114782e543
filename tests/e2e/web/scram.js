// node scram.js PACKAGE JOB: MQTT.js, from the folder PACKAGE, logs in with SCRAM-SHA-256 (JSON: url,
// user, password), authenticates again on the same connection, and prints what became of it.

const crypto = require("node:crypto");

const METHOD = "SCRAM-SHA-256";

class Scram {
  constructor(user, password) {
    this.password = password;
    this.bare = `n=${user},r=${crypto.randomBytes(18).toString("base64")}`;
    this.first = Buffer.from(`n,,${this.bare}`);
  }

  final(challenge) {
    const text = challenge.toString();
    const [nonce, salt, rounds] = text.split(",").map((part) => part.slice(2));
    const key = crypto.pbkdf2Sync(this.password, Buffer.from(salt, "base64"), +rounds, 32, "sha256");
    const hmac = (secret, data) => crypto.createHmac("sha256", secret).update(data).digest();
    const clientKey = hmac(key, "Client Key");
    const unproven = `c=biws,r=${nonce}`;
    const message = `${this.bare},${text},${unproven}`;
    const stored = crypto.createHash("sha256").update(clientKey).digest();
    const blind = hmac(stored, message);
    const proof = Buffer.from(clientKey.map((byte, at) => byte ^ blind[at]));
    this.expected = `v=${hmac(hmac(key, "Server Key"), message).toString("base64")}`;
    return Buffer.from(`${unproven},p=${proof.toString("base64")}`);
  }

  trusts(data) {
    if (data.toString() !== this.expected) throw new Error("the server does not know the password");
  }
}

function properties(data) {
  return { authenticationMethod: METHOD, authenticationData: data };
}

function main([, , folder, job]) {
  const mqtt = require(`${folder}/node_modules/mqtt`);
  const { url, user, password } = JSON.parse(job);
  let login = new Scram(user, password);
  const client = mqtt.connect(url, {
    protocolVersion: 5,
    reconnectPeriod: 0,
    properties: properties(login.first),
  });
  client.handleAuth = (packet, answer) => {
    const data = packet.properties.authenticationData;
    if (packet.reasonCode === 0x18) {
      const next = properties(login.final(data));
      answer(null, { cmd: "auth", reasonCode: 0x18, properties: next });
      return;
    }
    login.trusts(data);
    console.log("authenticated twice");
    client.end();
  };
  client.on("connect", (connack) => {
    login.trusts(connack.properties.authenticationData);
    login = new Scram(user, password);
    client._sendPacket({ cmd: "auth", reasonCode: 0x19, properties: properties(login.first) });
  });
  client.on("error", (error) => {
    console.log(`refused ${error.code}`);
    client.end();
  });
}

main(process.argv);
