// A process for store_test.ts to kill: puts contents into a folder without end and prints each number once it is promised.
// Arguments: the folder, bytes of a content.
import { openDenoFolder } from "../../peer/store/folder_deno.ts";
import { putForEver } from "./store_tab.ts";

const [root, bytes] = Deno.args;
await putForEver(await openDenoFolder(root!), Number(bytes), (number) => console.log(number));
