// Loaded before Zigbee2MQTT: an adapter without hardware, whose devices confirm every command.
"use strict";
const Module = require("node:module");
const require2 = Module.createRequire(process.env.ZIGBEE2MQTT_FOLDER + "/index.js");
const herdsman = require("node:path").dirname(require2.resolve("zigbee-herdsman/package.json"));
const adapter = require(herdsman + "/dist/adapter/adapter.js");

class Stub extends adapter.Adapter {
    async start() { return "resumed"; }
    async stop() {}
    async getCoordinatorIEEE() { return "0x00124b00120144ae"; }
    async getCoordinatorVersion() { return {type: "stub", meta: {revision: 1}}; }
    async supportsBackup() { return false; }
    async getNetworkParameters() {
        return {panID: 0x1a62, extendedPanID: "0xdddddddddddddddd", channel: 11, nwkUpdateID: 0};
    }
    async permitJoin() {}
    async sendZdo() {}
    async sendZclFrameToGroup() {}
    async sendZclFrameToAll() {}
    async sendZclFrameToEndpoint() {}
}
adapter.Adapter.create = async (...options) => new Stub(...options);
