import { useQuery } from "@tanstack/react-query";
import { create as texts } from "@/texts/create";
import type { Form } from "./form";
import { script } from "./queries";

/** Field hints from the script configuration. */
export function useScriptHints({ choice }: Form): Readonly<Record<string, string | undefined>> {
  const { data } = useQuery({ ...script, enabled: choice.isScript });
  if (!choice.isScript || !data) return {};
  const { hints } = texts.script;
  const options = Object.keys(data.extra_options);
  return {
    input_subdir: hints.input_subdir(data.input_folder),
    template: hints.template(data.template_folder),
    tries: hints.tries,
    extra_args: options.length ? hints.options(options.join(", ")) : hints.noOptions,
  };
}
