import { fireEvent, render, screen, waitFor } from "@testing-library/react";
import { Tooltip } from "radix-ui";
import { afterEach, describe, expect, it, vi } from "vitest";
import { SignInForm } from "./SignInForm";

afterEach(() => vi.unstubAllGlobals());

function renderForm(status: number, body: unknown) {
  vi.stubGlobal(
    "fetch",
    vi.fn(async () => new Response(JSON.stringify(body), { status })),
  );
  const onSignedIn = vi.fn();
  render(
    <Tooltip.Provider>
      <SignInForm email="ada@example.com" onSignedIn={onSignedIn}>
        {() => <button type="submit">Sign in</button>}
      </SignInForm>
    </Tooltip.Provider>,
  );
  const password = screen.getByLabelText<HTMLInputElement>("Password");
  fireEvent.change(password, { target: { value: "secret" } });
  fireEvent.submit(password.form as HTMLFormElement);
  return { onSignedIn, password };
}

describe("the sign-in form", () => {
  it("passes on the user who signed in", async () => {
    const { onSignedIn } = renderForm(200, { data: { user: { id: "1" } } });
    await waitFor(() => expect(onSignedIn).toHaveBeenCalledWith({ id: "1" }));
  });

  it("shows why it failed and clears the password", async () => {
    const { onSignedIn, password } = renderForm(429, { detail: "Too many attempts. Try again in a minute." });
    expect((await screen.findByRole("alert")).textContent).toContain("Too many attempts");
    expect(password.value).toBe("");
    expect(onSignedIn).not.toHaveBeenCalled();
  });
});
