// Tells the browser type check what the bundler does with files that are not TypeScript.
declare module "*.wgsl" {
  const text: string;
  export default text;
}
declare module "*.css";
