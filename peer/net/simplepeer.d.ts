// simple-peer ships its browser bundle without types; simple_peer.ts narrows what it uses of it.
declare module "simple-peer/simplepeer.min.js" {
  const SimplePeer: unknown;
  export { SimplePeer as default };
}
